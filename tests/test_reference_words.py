"""The settings' reference says in words what each setting and each argument of a class is."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable

from docs.reference import from_code
from docs.reference.words import CLASS_WORDS, WORDS
from medagent.evaluation.benchmarks import JsonlBenchmark
from tests.support import ROOT

LONGEST_WORDS = 20
LONGEST_REPEATED = 15  # words of a text that several rows may share
SETTINGS = ROOT / "docs" / "reference" / "settings.md"


def test_every_setting_has_words_and_no_word_is_left_over() -> None:
    rows = {row for command in from_code.CONFIGURABLE for row in from_code.settings_of(command)}
    own = [row for row in rows if not row.name.startswith("trainer.")]
    bare = {row.name for row in own if not row.text.partition("Classes: ")[0]}
    assert not bare, "name them in the docstring of their class, or in docs/reference/words.py"
    assert not set(WORDS) - {row.name for row in rows} - {"config"}


def nameable_classes() -> set[type]:
    found = [from_code.nameable(command) for command in from_code.CONFIGURABLE]
    return {kind for families in found for kinds in families.values() for kind in kinds}


def bare_arguments(kinds: Iterable[type]) -> list[str]:
    """The `init_args` of classes without words."""
    rows = [(kind.__name__, row) for kind in kinds for row in from_code.class_entries(kind)[0]]
    return sorted(f"{name}.{row.name}" for name, row in rows if not row.text)


def words_left_over(kinds: Iterable[type], words: Iterable[str]) -> set[str]:
    """The keys of words that no argument of the classes takes."""
    return set(words).difference(
        *(from_code.class_keys(kind, from_code.class_entries(kind)[0]).values() for kind in kinds)
    )


def test_every_argument_of_a_class_has_words_and_no_word_is_left_over() -> None:
    kinds = nameable_classes()
    assert len(kinds) > 30
    assert not bare_arguments(kinds), "name them in CLASS_WORDS of docs/reference/words.py, then make reference"
    assert not words_left_over(kinds, CLASS_WORDS)


def texts_of(page: str) -> list[tuple[str, str]]:
    """(name, text) of every row of a page's tables; the text is the last cell."""
    rows = [re.split(r"(?<!\\)\|", line) for line in page.splitlines() if line.startswith("| `")]
    return [(row[1].strip(" `"), row[-2].strip()) for row in rows]


def repeated_texts(page: str) -> list[str]:
    """The texts of more than `LONGEST_REPEATED` words that stand in several rows."""
    times = Counter(text for _, text in texts_of(page) if len(text.split()) > LONGEST_REPEATED)
    return [text for text, rows in times.items() if rows > 1]


def test_no_long_text_stands_in_two_rows_of_the_settings() -> None:
    page = SETTINGS.read_text(encoding="utf-8")
    assert len(texts_of(page)) > 250
    assert not repeated_texts(page), "give each setting words of its own in docs/reference/words.py"


def test_a_row_names_its_classes_once() -> None:
    rows = texts_of(SETTINGS.read_text(encoding="utf-8"))
    assert sum("Classes: " in text for _, text in rows) > 5
    assert not [name for name, text in rows if text.count("Classes: ") > 1 or "Default: " in text]


def test_words_are_short() -> None:
    words = {**WORDS, **CLASS_WORDS}
    assert not [name for name, text in words.items() if not 0 < len(text.split()) <= LONGEST_WORDS]


# That the checks can fail.


class Sized(JsonlBenchmark):
    def __init__(self, size: int, path: str) -> None:
        super().__init__(path)
        self.size = size


def test_arguments_without_words_are_found() -> None:
    assert bare_arguments([Sized]) == ["Sized.size"]  # `path` has those of its base
    assert words_left_over([Sized], ["FileBenchmark.path", "FileBenchmark.hub", "size"]) == {
        "FileBenchmark.hub",
        "size",
    }


def test_repeated_texts_are_found() -> None:
    long = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen \\|"
    page = (
        f"| `a` | int | `0` | {long} |\n| `b` | int | `1` | {long} |\n| `c` | a \\| b | | short |\n| `d` | | | short |"
    )
    assert repeated_texts(page) == [long]
    assert not repeated_texts(page.replace("fifteen ", "", 2))
    assert not repeated_texts(page.replace("one", "1", 1))
