"""What a Markdown page holds, for the tests of the documents: sentences, links, anchors, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from itertools import pairwise

from markdown_it import MarkdownIt
from markdown_it.token import Token

LONGEST_LINE = 100  # columns
tokens_of = cache(MarkdownIt("commonmark").enable("table").parse)
ENDS = re.compile(r"(?<=[.!?])[\"')\]]*\s+(?=[\"'(\[]*[A-Z0-9])")
NO_ENDS = re.compile(r"\b(e\.g|i\.e|vs|cf|al|Dr|Fig|No|St)\.(?=\s)")
COMMAND = re.compile(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?medagent ")


def inlines_of(page: str) -> Iterator[tuple[str, int, list[Token]]]:
    """(tag of the block, its first line, what stands in it) of every paragraph, heading and cell."""
    tokens = tokens_of(page)
    for block, token in pairwise(tokens):
        if token.type == "inline" and token.map:
            yield block.tag, token.map[0] + 1, token.children or []


def words_in(text: str) -> int:
    """Words: what spaces part and has a letter or a digit."""
    return sum(any(character.isalnum() for character in word) for word in text.split())


def sentences_of(page: str) -> list[str]:
    """The sentences of a page's paragraphs and lists as they are read: inline code is one word."""
    said = {"code_inline": "Code", "softbreak": " ", "hardbreak": " "}
    found = []
    for tag, _, parts in inlines_of(page):
        if tag == "p":
            text = "".join(part.content if part.type == "text" else said.get(part.type, "") for part in parts)
            text = NO_ENDS.sub(lambda match: match.group(1), text)
            found += [sentence.strip() for sentence in ENDS.split(text) if words_in(sentence)]
    return found


def long_sentences(page: str, most: int) -> list[str]:
    """The sentences with more words than `most`."""
    return [sentence for sentence in sentences_of(page) if words_in(sentence) > most]


def mean_words(page: str) -> float:
    """Words per sentence; 0 for a page without one."""
    lengths = [words_in(sentence) for sentence in sentences_of(page)]
    return sum(lengths) / max(1, len(lengths))


def long_lines(page: str) -> list[int]:
    """Numbers of the lines over the limit, outside code, tables and HTML; addresses of links do not count."""
    kinds = ("fence", "code_block", "html_block")
    spans = [token.map for token in tokens_of(page) if token.type in kinds and token.map]
    return [
        number + 1
        for number, line in enumerate(page.splitlines())
        if len(re.sub(r"\]\(\S*?\)", "", line)) > LONGEST_LINE and not line.lstrip().startswith("|")
        if not any(first <= number < end for first, end in spans)
    ]


def links_of(page: str) -> list[tuple[int, str]]:
    """(line, target) of every link and image outside code."""
    found = []
    for _, line, parts in inlines_of(page):
        for part in parts:
            line += part.type == "softbreak"
            target = part.attrs.get("href") or part.attrs.get("src")
            found += [(line, str(target))] if target else []
            found += [(line, each) for each in addresses(part) if part.type == "html_inline"]
    blocks = (token for token in tokens_of(page) if token.type == "html_block" and token.map)
    return found + [(block.map[0] + 1, each) for block in blocks if block.map for each in addresses(block)]


def addresses(html: Token) -> list[str]:
    return re.findall(r"(?:src|href)=\"([^\"]*)\"", html.content)


def anchors_of(page: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    seen: dict[str, int] = {}
    found = set()
    for tag, _, parts in inlines_of(page):
        if tag.startswith("h"):
            slug = re.sub(r"[^\w\- ]", "", "".join(part.content for part in parts).lower()).replace(" ", "-")
            number = seen[slug] = seen.get(slug, -1) + 1
            found.add(f"{slug}-{number}" if number else slug)
    return found


@dataclass(frozen=True)
class Command:
    """A line of shell: its words, the line it stands in, and the folder that `cd` lines before it lead to.

    Where that folder is a copy, it is the one copied from, and the copy lay beside the repository's own folders.
    """

    line: int
    words: tuple[str, ...]
    folder: str
    copied: bool


def commands_of(page: str) -> list[Command]:
    """Every `medagent ...` of a page's code blocks, continued lines joined and comments left out.

    A copied folder (`cp -r FROM TO`) stands for the one it was copied from.
    """
    found: list[Command] = []
    copies: dict[str, str] = {}
    for block in tokens_of(page):
        if block.type not in ("fence", "code_block") or not block.map:
            continue
        folder, begun = ".", ""
        for number, line in enumerate(block.content.splitlines(), start=block.map[0] + 1 + (block.type == "fence")):
            text = begun + line.strip()
            begun = text[:-1] if text.endswith("\\") else ""
            for part in [] if begun else re.split(r"\s+&&\s+", text.removeprefix("$ ")):
                if moved := re.fullmatch(r"cp -r (\S+) (\S+)", part):
                    copies[moved.group(2)] = moved.group(1)
                elif moved := re.match(r"cd (\S+)", part):
                    folder = copies.get(moved.group(1), moved.group(1))
                elif COMMAND.match(part):
                    found.append(Command(number, words_of(part), folder, folder in copies.values()))
    return found


def words_of(command: str) -> tuple[str, ...]:
    """The arguments of a `medagent` line: what its shell would hand over, up to a pipe or a redirection."""
    words = shlex.split(COMMAND.sub("", command, count=1), comments=True)
    ends = [number for number, word in enumerate(words) if word in ("|", ">", ">>", "&", "&&", ";", "2>", "<")]
    return tuple(words[: min(ends, default=len(words))])
