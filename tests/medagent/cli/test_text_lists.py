"""Lists of texts on the command line: numbers, dates and null among them stay text, however the list is written."""

from __future__ import annotations

from functools import cache
from inspect import signature
from pathlib import Path
from typing import Any

import pytest
from jsonargparse import ArgumentParser, auto_cli, capture_parser

from medagent.cli.main import COMMANDS, CommandParser, main, with_flags_said
from medagent.cli.text_lists import texts_of
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from tests.retrieval.support import SMALL

WORDS = ["22", "00123", "333", "1e5", "null", "true", "2024-01-01", "~", "0x1F", "1_000", "12:30:45", "ä"]


def commands(found: dict[str, Any] = COMMANDS, *before: str) -> dict[tuple[str, ...], Any]:
    flat: dict[tuple[str, ...], Any] = {}
    for name, each in found.items():
        flat |= commands(each, *before, name) if isinstance(each, dict) else {(*before, name): each}
    return {words: each for words, each in flat.items() if words[-1] != "_help"}


OPTIONS = [
    (words, name, each.default is each.empty, str(each.annotation))
    for words, command in commands().items()
    for name, each in signature(command).parameters.items()
]


def parsed(words: tuple[str, ...], *given: str) -> Any:
    required = signature(commands()[words]).parameters.values()
    plain = ["x" for each in required if each.default is each.empty and str(each.annotation) != "list[str]"]
    found = parser().parse_args(with_flags_said([*words, *plain, *given]))
    for word in words:
        found = found[word]
    return found


@cache
def parser() -> ArgumentParser:
    return capture_parser(auto_cli, COMMANDS, [], prog="m", as_positional=True, parser_class=CommandParser)


@pytest.mark.parametrize(("words", "name", "positional"), [o[:3] for o in OPTIONS if "list[str" in o[3]])
def test_every_list_takes_numbers_as_text(words: tuple[str, ...], name: str, positional: bool) -> None:
    option = [] if positional else [f"--{name}"]
    if words == ("compare",):
        assert parsed(words, *WORDS, "[22, 00123]")[name] == ["x", *WORDS, ["22", "00123"]]
        return
    for given in (WORDS, [f"[{', '.join(WORDS)}]"], [",".join(WORDS)]):
        assert parsed(words, *option, *given)[name] == WORDS
    if option:
        assert parsed(words, "--" + name + "=00123", *option, "[22]")[name] == ["00123", "22"]


@pytest.mark.parametrize("words", commands())
def test_every_text_stays_as_it_is_typed(words: tuple[str, ...]) -> None:
    names = [name for of, name, given, kind in OPTIONS if of == words and kind in ("str", "str | None") and not given]
    for word in ("00123", "1e5", "true", "2024-01-01") if names else ():  # null says that an option is not given
        found = parsed(words, *["x"][: words == ("view",)], *(f"--{name}={word}" for name in names))
        assert {found[name] for name in names} == {word}


def test_a_list_as_it_is_typed() -> None:
    assert texts_of('["a, b", c]') == ["a, b", "c"]
    assert texts_of("[pmid:1, x#2, http://a/b]") == ["pmid:1", "x#2", "http://a/b"]
    assert texts_of("[*pain, a: b]") == ["*pain", "a: b"]
    assert texts_of("a[1]") == ["a[1]"]
    assert texts_of("PubMed*, WHO") == ["PubMed*", "WHO"]
    assert texts_of("[]") == texts_of("") == []


def test_an_option_with_one_text_leaves_the_question_to_the_command() -> None:
    found = with_flags_said(["search", "--source", "WHO", "gout", "--json", "--top_k", "3"])
    assert found == ["search", "gout", "--json", "true", "--top_k", "3", "--source", '["WHO"]']


def test_documents_with_numbers_for_ids_are_removed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    build_index([Passage.make("", f"text {id}", id=id) for id in ("22", "00123", "333", "a")], tmp_path / "i", SMALL)
    assert main(["index", "remove", str(tmp_path / "i"), "22", "00123"]) == 0
    assert "Removed 2 passages" in capsys.readouterr().out
    assert main(["index", "restore", str(tmp_path / "i"), "[00123]"]) == 0
    assert main(["index", "remove", str(tmp_path / "i"), "123"]) == 1


def test_a_list_of_tools_holds_servers_too() -> None:
    given = ("--tools", "[read, {mcp: python -m server, allow: [look_up], timeout_s: 5}]")
    found = parsed(("ask",), *given)
    server = found.tools[1]
    assert (found.tools[0], server.mcp, list(server.allow), server.timeout_s) == (
        "read",
        "python -m server",
        ["look_up"],
        5.0,
    )
