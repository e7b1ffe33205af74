"""What a Markdown page holds, for the tests of the documents: prose, sentences, links, anchors, commands."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import dataclass

LONGEST_LINE = 100  # columns
ENDS = re.compile(r"(?<=[.!?])[\"')\]*_]*\s+(?=[\"'(\[*_]*[A-Z0-9])")
NO_ENDS = re.compile(r"\b(e\.g|i\.e|vs|cf|al|Dr|Fig|No|St)\.(?=\s)")
LINK = re.compile(r"!?\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^()\s]*(?:\([^()]*\)[^()\s]*)*)(?:\s+\"[^\"]*\")?\)")
ITEM = re.compile(r"\s*([-*+]|\d+\.)\s+")
COMMAND = re.compile(r"\s*(?:\$ )?(?:[A-Z_]+=\S+ )*(?:\.venv/bin/)?medagent ")


@dataclass(frozen=True)
class Line:
    """A line of a page, and what it is: text, code, table, heading, blank."""

    number: int
    text: str
    kind: str


def lines_of(page: str) -> list[Line]:
    """The page's lines; fences are code, and so are indented lines after a blank one outside lists."""
    found: list[Line] = []
    fence, in_list, code_may_begin, comment = "", False, True, False
    for number, text in enumerate(page.splitlines(), start=1):
        bare = text.strip()
        opens = re.match(r"(`{3,}|~{3,})", bare)
        if fence or opens:
            kind = "code"
            if fence and bare.startswith(fence) and not bare.strip(fence[0]):
                fence = ""
            elif not fence and opens:
                fence = opens.group(1)
        elif comment or bare.startswith("<!--"):
            kind, comment = "comment", "-->" not in bare
        elif not bare:
            kind = "blank"
        elif text.startswith("    ") and code_may_begin and not in_list:
            kind = "code"
        elif bare.startswith("|"):
            kind = "table"
        elif re.match(r"#{1,6} ", text):
            kind, in_list = "heading", False
        else:
            kind = "text"
            in_list = bool(ITEM.match(text)) or (in_list and (text.startswith(" ") or found[-1].kind == "text"))
        code_may_begin = kind in ("blank", "code")
        found.append(Line(number, text, kind))
    return found


def plain(text: str) -> str:
    """Text as it is read: links by their words, images and tags gone, inline code as one word."""
    text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", " Code ", text)
    text = LINK.sub(lambda link: "" if link.group(0).startswith("!") else link.group(1), text)
    text = LINK.sub(lambda link: "" if link.group(0).startswith("!") else link.group(1), text)
    text = re.sub(r"</?[a-zA-Z][^<>]*>", " ", text)
    text = re.sub(r" Code (?=[.,;:!?)])", " Code", text)
    return re.sub(r"\*\*|__|(?<!\w)[*_]|[*_](?!\w)", "", text)


def words_in(text: str) -> int:
    """Words: what spaces part and has a letter or a digit."""
    return sum(any(character.isalnum() for character in word) for word in text.split())


def blocks_of(page: str) -> Iterator[str]:
    """Paragraphs and items of lists, each as one line."""
    block: list[str] = []
    for line in [*lines_of(page), Line(0, "", "blank")]:
        text = re.sub(r"^\s*>\s?", "", line.text)
        if block and (line.kind != "text" or ITEM.match(text) or not text.strip()):
            yield " ".join(block)
            block = []
        if line.kind == "text" and text.strip():
            block.append(ITEM.sub("", text, count=1).strip() if ITEM.match(text) else text.strip())


def sentences_of(page: str) -> list[str]:
    """The sentences of a page's paragraphs and lists."""
    found = []
    for block in blocks_of(page):
        text = NO_ENDS.sub(lambda match: match.group(1), " ".join(plain(block).split()))
        found += [sentence for sentence in ENDS.split(text) if words_in(sentence)]
    return found


def long_sentences(page: str, most: int) -> list[str]:
    """The sentences with more words than `most`."""
    return [sentence for sentence in sentences_of(page) if words_in(sentence) > most]


def mean_words(page: str) -> float:
    """Words per sentence; 0 for a page without one."""
    lengths = [words_in(sentence) for sentence in sentences_of(page)]
    return sum(lengths) / max(1, len(lengths))


NOT_READ = ("code", "comment")


def long_lines(page: str) -> list[int]:
    """Numbers of the lines over the limit, outside code and tables; addresses of links do not count."""
    return [
        line.number
        for line in lines_of(page)
        if line.kind not in ("code", "table", "comment") and len(LINK.sub(r"\1", line.text)) > LONGEST_LINE
    ]


def links_of(page: str) -> list[tuple[int, str]]:
    """(line, target) of every link and image outside code."""
    found = []
    for line in lines_of(page):
        if line.kind not in NOT_READ:
            text = re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "`", line.text)
            inner = [match.group(2) for link in LINK.finditer(text) for match in LINK.finditer(link.group(1))]
            targets = [link.group(2) for link in LINK.finditer(text)] + inner
            targets += re.findall(r"(?:src|href)=\"([^\"]*)\"", text)
            found += [(line.number, target) for target in targets]
    return found


def anchors_of(page: str) -> set[str]:
    """The anchors that GitHub gives a page's headings."""
    seen: dict[str, int] = {}
    for line in lines_of(page):
        if line.kind == "heading":
            title = LINK.sub(r"\1", line.text.lstrip("#").strip()).lower()
            slug = re.sub(r"[^\w\- ]", "", title).replace(" ", "-")
            number = seen[slug] = seen.get(slug, -1) + 1
            seen[f"{slug}-{number}" if number else slug] = seen.get(f"{slug}-{number}" if number else slug, 0)
    return set(seen)


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
    folder, copies, begun = ".", dict[str, str](), ""
    for line in lines_of(page):
        if line.kind != "code":
            folder, begun = ".", ""
            continue
        text = begun + line.text.strip()
        if text.endswith("\\"):
            begun = text[:-1]
            continue
        begun = ""
        for part in re.split(r"\s+&&\s+", text.removeprefix("$ ")):
            if moved := re.fullmatch(r"cp -r (\S+) (\S+)", part):
                copies[moved.group(2)] = moved.group(1)
            elif moved := re.match(r"cd (\S+)", part):
                folder = copies.get(moved.group(1), moved.group(1))
            elif COMMAND.match(part):
                found.append(Command(line.number, words_of(part), folder, folder in copies.values()))
    return found


def words_of(command: str) -> tuple[str, ...]:
    """The arguments of a `medagent` line: what its shell would hand over, up to a pipe or a redirection."""
    words = shlex.split(COMMAND.sub("", command, count=1), comments=True)
    ends = [number for number, word in enumerate(words) if word in ("|", ">", ">>", "&", "&&", ";", "2>", "<")]
    return tuple(words[: min(ends, default=len(words))])
