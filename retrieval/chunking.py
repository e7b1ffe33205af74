"""Documents to passages of whole sentences, up to a limit of tokens, with an overlap; headings stay with the text.

A passage also has a kind (recommendation, boxed warning, table, narrative), and the grades of evidence that it prints.
The rules for these are strict: a passage that only talks of recommendations is narrative.
"""

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from medagent.retrieval.bibliography import NARRATIVE, Bibliography
from medagent.retrieval.normalization import strip_invisible
from medagent.retrieval.passages import Passage, content_digest
from medagent.retrieval.settings import Chunking

CountTokens = Callable[[Sequence[str]], list[int]]

# A full stop after these, a single letter or a number is no end of a sentence ("E. coli", "Fig. 2", "0.5 mg").
_ABBREVIATIONS = frozenset(
    (
        "al approx cf ca dept dr e.g eg eq et etc fig figs i.e ie incl inc jr mr mrs ms no nos prof ref refs resp sp "
        "spp sr st subsp tab var viz vol vs"
    ).split()
)
_END = re.compile(r"[.!?][\"')\]]*\s+(?=[\"'(\[]?[A-Z0-9Α-Ω])|\n+")
_LAST_WORD = re.compile(r"([^\s(]+)\.[\"')\]]*\s*$")


@dataclass(frozen=True)
class Section:
    """A headed stretch of a document; the heading may be empty. `kind` is "table" or "boxed warning" where known."""

    heading: str
    text: str
    kind: str = ""


@dataclass(frozen=True)
class Document:
    """One article, file or row, as a reader returns it.

    `id` names it among all documents; an empty one is derived from the content. `group` is the id of a larger document
    that it belongs to, where its row says so. `name` is what it is known by where it has no id, such as its path.
    `aliases` are its other names (`doi:...`). A later `version` replaces an earlier one; versions sort as text.
    """

    title: str
    sections: tuple[Section, ...]
    source: str = ""
    id: str = ""
    year: int | None = None
    licence: str = ""
    group: str = ""
    name: str = ""
    aliases: tuple[str, ...] = ()
    version: str = ""
    about: Bibliography = Bibliography()


def split_sentences(text: str) -> list[str]:
    """The sentences of a text, in order, white space fold."""
    return [whole for start, end in sentence_spans(text) if (whole := " ".join(text[start:end].split()))]


def sentence_spans(text: str) -> list[tuple[int, int]]:
    """Start and end of each sentence; line ends end a sentence too (lists and headings have no full stop)."""
    spans, start = [], 0
    for match in _END.finditer(text):
        # A few characters back are enough, as words are short. All since `start` would take the square of a long
        # text's length.
        word = None
        if "\n" not in match.group():
            word = _LAST_WORD.search(text, max(start, match.start() - 30), match.end())
        if word and (word.group(1).lower() in _ABBREVIATIONS or (len(word.group(1)) == 1 and word.group(1).isalpha())):
            continue
        spans.append((start, match.end()))
        start = match.end()
    return [*spans, (start, len(text))] if start < len(text) else spans


def chunk_document(document: Document, chunking: Chunking, count: CountTokens) -> Iterator[Passage]:
    """The passages of a document: one keeps its id, several are numbered "pmid:1#2"; `count` gives tokens of texts."""
    title = _shortened(strip_invisible(document.title), chunking.max_tokens // 3, count)
    pieces = []
    for section in document.sections:
        heading = _shortened(strip_invisible(section.heading), chunking.max_tokens // 4, count)
        for text, rows in _cut(strip_invisible(section.text), title, heading, chunking, count):
            pieces.append((heading, text, *kind_and_grade(section.kind, section.heading, text, rows=rows)))
    whole = "\n".join(text for _, text, _, _ in pieces)
    id_ = document.id or content_digest(title, "", whole)
    for number, (heading, text, kind, grade) in enumerate(pieces, start=1):
        yield Passage.make(
            title,
            text,
            document.source,
            id=(document.id if len(pieces) == 1 else f"{id_}#{number}" if document.id else ""),
            section=heading,
            year=document.year,
            licence=document.licence,
            document=document.group or (id_ if len(pieces) > 1 else ""),
            about=document.about.of_kind(kind, grade),
        )


def _shortened(heading: str, max_tokens: int, count: CountTokens) -> str:
    """A heading that leaves room for the text, as it is embedded with every passage."""
    if not max_tokens or count([heading])[0] <= max_tokens:
        return heading
    words = heading.split()
    while len(words) > 1 and count([" ".join(words)])[0] > max_tokens:
        words = words[: max(1, len(words) * 3 // 4)]
    return " ".join(words)[: 8 * max_tokens] + " ..."


def _cut(text: str, title: str, heading: str, chunking: Chunking, count: CountTokens) -> Iterator[tuple[str, bool]]:
    """Pieces of the text that fit, each with whether most of it is a table. Where it is cut, no piece mixes both."""
    text = text.strip()
    if not text:
        return
    headed, whole = count(["\n".join(part for part in (title, heading) if part), text])
    room = max(chunking.max_tokens - headed, 1)
    rows = is_table(text)
    if not chunking.max_tokens or whole <= room:
        yield text, rows
        return
    if len(parts := tables_apart(text)) > 1:
        for part in parts:
            yield from _cut(part, title, heading, chunking, count)
        return
    units = text.split("\n") if rows else split_sentences(text)
    sentences = [piece for unit in units for piece in _fitting(unit, room, count)]
    sizes = count(sentences)
    start = 0
    while start < len(sentences):
        end, size = start, 0
        while end < len(sentences) and (end == start or size + sizes[end] <= room):
            size += sizes[end]
            end += 1
        yield ("\n" if rows else " ").join(sentences[start:end]), rows
        if end == len(sentences):
            return
        back, repeated = end, 0
        while back > start + 1 and repeated + sizes[back - 1] <= min(chunking.overlap_tokens, room - sizes[end]):
            back -= 1
            repeated += sizes[back]
        start = back


def _fitting(sentence: str, room: int, count: CountTokens) -> Iterator[str]:
    """The sentence, or stretches of its words where it alone is too long."""
    size = count([sentence])[0]
    if size <= room:
        yield sentence
        return
    words = sentence.split()
    if len(words) == 1:
        for start in range(0, len(sentence), max(room, 1)):
            yield sentence[start : start + max(room, 1)]
        return
    step = math.ceil(len(words) / math.ceil(size / room))
    for start in range(0, len(words), step):
        yield from _fitting(" ".join(words[start : start + step]), room, count)


_BOXED = re.compile(r"(?i:(?:black[ -])?box(?:ed)? warning)\b|WARNINGS?: [^a-z]+$")
_HEADING = re.compile(
    r"(?i)(?:\d[\d.]*\s+)?(?:(?:key|main|clinical|practice|treatment|guideline|specific|summary of|the)\s+){0,3}"
    r"recommendations?(?:\s+statements?)?(?:\s+#?\d[\d.]*[a-z]?)?(?:[:.].*|\s+(?:for|on|about)\s.*)?$"
)
_ABOUT = re.compile(
    r"(?i)\b(?:rationale|research|evidence|background|methods?|implementation|discussion|why|how|grading|remarks?"
    r"|justification|limitations?|future|previous|other|against)\b"
)
_RESEARCH = re.compile(
    r"\b(?:further|future|more|additional)\s(?:\w+\s){0,2}(?:research|stud|trial|work)|research should"
)
_ADVICE = re.compile(
    r"(?i)\b(?:we|panel|committee|group|force|society|college|guidelines?|uspstf|who|nice)\s(?:\w+\s){0,2}"
    r"(?:recommend|suggest|advise)s?\b"
    r"|\b(?:is|are|be)\s(?:\w+\s){0,2}(?:recommended|suggested|advised|indicated|reasonable|considered)\b"
    r"|\b(?:should|must)\b|(?:^|; )recommendations?: "
    r"|^\W*(?:recommendation\W+)?(?:\d[\d.]*:?\s+)?(?:recommend|suggest|offer|consider|do not|give|use|avoid|start|"
    r"stop|advise|refer|discuss|measure|monitor|assess|prescribe)\b"
)
_LABEL = re.compile(r"^(?:\w+ )?Recommendation\s*#?\d[\d.]*[a-z]?\s*:")
_QUALITY = r"(?:very low|low|moderate|high)"
_LEVEL = r"(?:[1-5](?:[abc]\b|\+{0,2}(?!\w))|(?:IV|V|I{1,3}[ab]?)\b|[ABC](?:-(?:R|NR|LD|EO))?\b)"
# Grades that say so themselves, and codes that are grades only behind a recommendation: tumours have grades too.
_PLAIN_GRADE = re.compile(
    r"\b(?:strong|weak|conditional) recommendation(?:\W{1,3}(?:(?:based on|with|and) )?"
    rf"(?:{_QUALITY}[- ](?:quality|certainty|level|confidence)(?: of)?(?: evidence)?"
    rf"|(?:quality|certainty|level) of evidence\W{{1,2}}{_QUALITY})|(?=\)))"
    rf"|\b(?:class(?: of recommendation)?|COR)\W{{1,2}}(?:III|II[ab]?|I|[123][ab]?)\b"
    rf"(?:\W{{1,2}}(?:no benefit|harm)\)?)?"
    rf"\W{{1,2}}(?:(?:level of evidence|LOE)\W{{1,2}}(?-i:{_LEVEL})|level\W{{1,2}}(?-i:[ABC]\b))"
    rf"|\b(?:level of evidence|evidence level|LOE)(?:: | )(?:level )?(?-i:{_LEVEL})"
    r"|\b(?:(?:grade|strength) of recommendation|recommendation grade):? (?P<a>[12]?[A-D]\b|strong|weak|conditional)"
    r"|\((?P<b>[ABCDI]) (?:recommendation|statement)\)|\bgrade (?P<c>[A-D]) recommendation",
    re.IGNORECASE,
)
_CODE = re.compile(
    r"[(\[](?:GRADE|[Gg]rade):? ?(?P<a>[12]?[A-D])[)\]]|\b(?:GRADE|[Gg]rade):? (?P<b>[12][A-D])\b"
    rf"|[(\[](?P<c>[12][A-D])[)\]](?=\.|\s*$)|[(\[](?P<d>[Ll]evel {_LEVEL})[)\]]"
)
_BEFORE_GRADE = re.compile(  # a grade in a sentence of its own belongs to the sentence before
    r"\.\s+(?=[(\[](?:[12][A-D]|[Ll]evel)\b|"
    r"[(\[]?(?i:grade|recommendation grade|level of evidence|class|strong|weak|conditional)\b)"
)
_HINT = re.compile(r"recommendation|evidence|grade|loe|(?:[(\[]|[,;] )level|[12][a-d][)\]]", re.IGNORECASE)
_SENTENCE = re.compile(r"(?<=[.!?])\s+(?=[A-Z\d(\[])|\n")
_ROW = re.compile(r"([^:;]{1,60}): [^;]*; [^:;]{1,60}: ")


def kind_and_grade(section_kind: str, heading: str, text: str, *, rows: bool) -> tuple[str, str]:
    """A passage's kind, and its grades between semicolons; `rows` says that most of it are rows of a table."""
    headings = heading.split(" > ")
    if section_kind == "boxed warning" or any(map(_BOXED.match, headings)):
        return "boxed warning", ""
    kind = "table" if rows or section_kind == "table" else NARRATIVE
    if not _HINT.search(f"{heading}: {text}"):  # most passages; the rules take their time
        return kind, ""
    grades = [_said(found) for found in _PLAIN_GRADE.finditer(f"{headings[-1]}: {text}")]
    expected = any(map(_HEADING.match, headings)) and not any(map(_ABOUT.search, headings))
    for sentence in _SENTENCE.split(_BEFORE_GRADE.sub(" ", text)):
        if _ADVICE.search(sentence) and not _RESEARCH.search(sentence):
            codes = [_said(found) for found in _CODE.finditer(sentence)]
            grades += codes
            if expected or codes or _LABEL.match(sentence) or _PLAIN_GRADE.search(sentence):
                kind = "recommendation"
    return kind, "; ".join(sorted(dict.fromkeys(grades), key=text.find))


def _said(found: re.Match[str]) -> str:
    code = next(filter(None, found.groups()), found[0])
    return " ".join(code.replace(";", ",").split())


def is_table(text: str) -> bool:
    """Whether most of a text are rows of a table."""
    return text.count(": ") > 3 and 2 * sum(len(line) for line, row in _rows_of(text) if row) > len(text)


def tables_apart(text: str) -> list[str]:
    """The text in parts: tables and what stands around them. A short line above rows, such as a caption, is theirs."""
    lines = _rows_of(text)
    below = [row for _, row in lines[1:]] + [False]
    within = [row or (after and len(line) < 200) for (line, row), after in zip(lines, below, strict=True)]
    parts = groupby(zip(within, lines, strict=True), key=itemgetter(0))
    return ["\n".join(line for _, (line, _) in part) for _, part in parts]


def _rows_of(text: str) -> list[tuple[str, bool]]:
    """Each line, and whether it is a row as `table_lines` writes them: rows of a table share their first name."""
    named = [(line, found[1] if (found := _ROW.match(line)) else "") for line in text.split("\n")]
    number = Counter(name for _, name in named)
    return [(line, bool(name) and number[name] > 1) for line, name in named]


def kind_line(kind: str, grade: str) -> str:
    """Kind and grades as they stand beside a passage's source: "recommendation, grade 1A"; empty for a narrative."""
    grade = f"grade {grade}" if grade and " " not in grade.replace("; ", "") else grade
    return ", ".join(part for part in (kind, grade) if part not in ("", NARRATIVE))
