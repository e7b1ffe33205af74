"""The settings' reference says in words what each setting and each argument of a class is."""

from __future__ import annotations

from docs.reference import from_code
from docs.reference.words import CLASS_WORDS, WORDS


def test_every_setting_has_words_and_no_word_is_left_over() -> None:
    rows = {row for command in from_code.CONFIGURABLE for row in from_code.settings_of(command)}
    own = [row for row in rows if not row.name.startswith("trainer.")]
    bare = {row.name for row in own if not row.text.partition("Classes: ")[0]}
    assert not bare, "name them in the docstring of their class, or in docs/reference/words.py"
    assert not set(WORDS) - {row.name for row in rows} - {"config"}


def test_every_argument_of_a_class_has_words_and_no_word_is_left_over() -> None:
    found = [from_code.nameable(command) for command in from_code.CONFIGURABLE]
    kinds = {kind for families in found for kinds in families.values() for kind in kinds}
    assert len(kinds) > 30
    rows = [(kind, row) for kind in kinds for row in from_code.class_entries(kind)[0]]
    bare = sorted(f"{kind.__name__}.{row.name}" for kind, row in rows if not row.text)
    assert not bare, "name them in CLASS_WORDS of docs/reference/words.py, then make reference"
    keys = (from_code.class_keys(kind, from_code.class_entries(kind)[0]).values() for kind in kinds)
    assert not set(CLASS_WORDS).difference(*keys)
