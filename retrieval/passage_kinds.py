"""The kind of a passage (recommendation, boxed warning, table, narrative), and the grades of evidence that it prints.

Rules are strict: a passage that only talks of recommendations is narrative.
"""

import re
from collections import Counter
from itertools import groupby
from operator import itemgetter

from medagent.retrieval.bibliography import NARRATIVE

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
