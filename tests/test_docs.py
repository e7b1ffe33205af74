"""The documents say what is so: links lead somewhere, commands parse, the reference is current, sentences are short."""

from __future__ import annotations

import re
import subprocess
from fnmatch import fnmatch
from functools import cache
from pathlib import Path

import pytest
from jsonargparse import ArgumentParser, auto_cli, capture_parser

from docs.reference import from_code, generate
from docs.reference.metric_words import METRICS
from medagent.cli.commands.train import CONFIGURED
from medagent.cli.main import COMMANDS, with_flags_said
from medagent.config_files import with_config_paths
from medagent.errors import ConfigError
from tests import markdown
from tests.support import ROOT

LONGEST_SENTENCE, LONGEST_MEAN = 35, 16  # words
INVERTED = re.compile(r"\W*(Of an?|What|Where)\b")


def tracked() -> list[str]:
    listed = subprocess.run(["git", "ls-files", "*.md"], cwd=ROOT, capture_output=True, text=True, check=True)
    names = (name for name in listed.stdout.split() if not name.startswith("tests/"))  # those there are to be read
    return sorted(name for name in names if (ROOT / name).exists())


PAGES = tracked()
WRITTEN = [name for name in PAGES if not name.startswith("docs/reference/")]
DOCS = [name for name in WRITTEN if name.startswith("docs/")]


@cache
def text_of(name: str) -> str:
    return (ROOT / name).read_text(encoding="utf-8")


def broken_links(page: str, folder: Path) -> list[str]:
    """The links of a page in `folder` that lead to no file, or to no heading of it."""
    broken = []
    for line, target in markdown.links_of(page):
        if target.startswith(("http://", "https://", "mailto:")):
            continue
        path, _, anchor = target.partition("#")
        found = folder / path if path else None
        if found is not None and not found.exists():
            broken.append(f"line {line}: {target}")
        elif anchor:
            there = page if found is None else found.read_text(encoding="utf-8")
            broken += [] if anchor in markdown.anchors_of(there) else [f"line {line}: {target}"]
    return broken


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    broken = {name: found for name in PAGES if (found := broken_links(text_of(name), (ROOT / name).parent))}
    assert not broken


def test_sentences_are_short() -> None:
    diaries = "studies/*/log.md"
    long = {
        name: found
        for name in WRITTEN
        if not fnmatch(name, diaries) and (found := markdown.long_sentences(text_of(name), LONGEST_SENTENCE))
    }
    assert not long
    means = {name: markdown.mean_words(text_of(name)) for name in ("README.md", *DOCS)}
    assert not {name: mean for name, mean in means.items() if mean > LONGEST_MEAN}


def test_no_sentence_begins_with_its_object() -> None:
    """Neither "Of a prompt ..." nor "What is shown ...": a sentence names its actor first. Questions may."""
    inverted = {
        name: found for name in (*DOCS, "README.md", "CONTRIBUTING.md") if (found := inverted_in(text_of(name)))
    }
    assert not inverted


def inverted_in(page: str) -> list[str]:
    """The sentences of a page that begin with "Of a", "What" or "Where", and are no questions."""
    return [said for said in markdown.sentences_of(page) if INVERTED.match(said) and not said.endswith("?")]


def test_a_page_keeps_to_its_length() -> None:
    """Counted as `wc -w` does: code, tables and links included."""
    words = {name: len(text_of(name).split()) for name in WRITTEN}
    assert words["README.md"] <= 700
    assert not {name: words[name] for name in (*DOCS, "CONTRIBUTING.md") if words[name] > 1200}
    assert not {name: count for name, count in words.items() if fnmatch(name, "studies/*/README.md") and count > 1500}


def test_lines_are_wrapped() -> None:
    assert not {name: found for name in WRITTEN if (found := markdown.long_lines(text_of(name)))}


# Commands.


@cache
def parser_of(command: str) -> ArgumentParser:
    if command in CONFIGURED:
        return from_code.parser_of(command)
    return capture_parser(auto_cli, COMMANDS, args=[], prog="medagent", as_positional=True)


def parse(words: tuple[str, ...]) -> None:
    """What `medagent` does with its arguments before it does anything.

    `...` stands for a task's own file, and mine.yaml is a file that the reader writes.
    """
    given = [part for word in words for part in (["--config", TASK] if word == "..." else [word])]
    while OWN_FILE in given:
        at = given.index(OWN_FILE)
        del given[at - 1 : at + 1]  # with its --config
    given = with_config_paths(given)
    if given and given[0] in CONFIGURED:
        parser_of(given[0]).parse_args(given[1:])
    else:
        parser_of("").parse_args(with_flags_said(given))


OWN_FILE = "mine.yaml"
TASK = str(ROOT / "configs" / "experiments" / "own_model.yaml")
GIVEN = [(name, command) for name in PAGES for command in markdown.commands_of(text_of(name))]


def test_every_command_parses(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(GIVEN) > 20
    wrong = []
    for name, command in GIVEN:
        folder = ROOT / command.folder
        with monkeypatch.context() as patched:
            patched.chdir(folder)
            patched.syspath_prepend(folder)  # where the modules lie that a YAML names
            status: object = 0
            try:
                parse(tuple(word.replace("../", f"{ROOT}/") if command.copied else word for word in command.words))
            except (SystemExit, ConfigError) as stop:
                status = stop.code if isinstance(stop, SystemExit) else str(stop)
        said = capsys.readouterr().err
        if status != 0:
            wrong.append(f"{name}:{command.line}: {' '.join(command.words)}\n{said}")
    assert not wrong, "\n".join(wrong)


def test_recipes_are_short() -> None:
    recipes = re.findall(r"```python\n(.*?)```", text_of("docs/extending.md"), re.DOTALL)
    assert len(recipes) == 11
    assert all(sum(bool(line.strip()) for line in recipe.splitlines()) <= 12 for recipe in recipes)


# The reference.


def test_the_reference_is_current(capsys: pytest.CaptureFixture[str]) -> None:
    assert generate.main(["--check"]) == 0, capsys.readouterr().out


def test_every_logged_metric_is_described_and_every_described_one_is_logged() -> None:
    logged = from_code.logged_metrics()
    assert len(logged) > 30
    undescribed = {
        name: where for name, where in logged.items() if not any(from_code.describes(own, name) for own in METRICS)
    }
    assert not undescribed, "give them a line in docs/reference/metric_words.py, then make reference"
    assert not [own for own in METRICS if not any(from_code.describes(own, name) for name in logged)]
    page = text_of("docs/reference/metrics.md")
    assert not [own for own in METRICS if f"`{own}`" not in page]


def test_metrics_are_found_wherever_they_are_logged() -> None:
    source = """
def step(self):
    found = {"new/metric": 1.0, **other, "plain": 2, f"kinds/{kind}": 3.0}
    found["late/metric"] = found["read/only"]
    self.log(f"{group}/norm", 1.0)
    self.post("chat/completions", {kind + "/x": 1})
    return {f"by/{kind}": 1 for kind in kinds}

MEANINGS = {"told/only": "what it means"}
"""
    assert from_code.metrics_in(source) == {"new/metric", "kinds/*", "late/metric", "*/norm", "by/*"}


# That the checks can fail.


def test_broken_links_and_long_lines_are_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# The `first` heading\n## Twice\n## Twice\n")
    right = "[a](there.md) [b](there.md#the-first-heading) ![c](there.md) [d](there.md#twice-1) [e](https://x.y)\n"
    assert not broken_links(right, tmp_path)
    wrong = "[a](nowhere.md)\n\n`[code](is/no/link.md)`\n\n[![b](gone.png)](there.md#twice-2)\n[c](#here)\n"
    assert broken_links(wrong, tmp_path) == [
        "line 1: nowhere.md",
        "line 5: there.md#twice-2",
        "line 5: gone.png",
        "line 6: #here",
    ]
    long = "x" * 101
    assert markdown.long_lines(f"{long}\n\n```\n{long}\n```\n| {long} |\n[words]({long})\n") == [1]
