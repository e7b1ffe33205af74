"""What chat programs ask of a model besides questions: titles, tags, follow-ups and search queries of a conversation.

They are answered here in a few words of the conversation itself, without the agent. LibreChat and Open WebUI send them
as messages in English, known by their words.
"""

from __future__ import annotations

import json
import re

_TASK = re.compile(r"^[^\w#\[]{0,20}(?:#{1,6}\s{0,3}task:|\[task\])", re.IGNORECASE)
LOOKED_AT = 4_000  # characters of an instruction
_TITLE = re.compile(
    r"\b(?:generate|create|write|provide|suggest|summari[sz]e|come up with)\b[^.\n]{0,80}\b(?:title|headline)\b"
    r"[^.\n]{0,60}\b(?:conversation|chat|thread|dialog\w{0,5}|discussion)\b|\|\|>title:",
    re.IGNORECASE,
)
_KINDS: dict[str, re.Pattern[str]] = {
    "tags": re.compile(
        r"\btags?\b.{0,80}\b(?:categori[sz]\w*|themes?|chat|conversation)\b|\bgenerate\b.{0,30}\btags\b", re.I
    ),
    "follow_ups": re.compile(r"\bfollow[- ]?ups?\b|\bsuggest\b.{0,60}\b(?:questions|prompts)\b", re.I),
    "queries": re.compile(r"\bsearch quer(?:y|ies)\b", re.I),
    "title": re.compile(r"\btitle\b", re.I),
}
_SAID = re.compile(
    r"(?:^|\n)\s*(?:\|\|>)?\s*(?:user|human|q)\s*:\s*[\"\u201c]?(.+?)[\"\u201d]?\s*(?=\n|$)", re.IGNORECASE
)
TITLE_WORDS = 6
_AS_JSON = re.compile(r"\bjson\b", re.IGNORECASE)


def chore_answer(system: str, last: str, questions: list[str]) -> str | None:
    """The answer to a chore; None where the conversation asks a question.

    `system` and `last` are the system's messages and the last one of the user (empty where there is none). `questions`
    are the user's earlier messages.
    """
    instruction = (last or system)[:LOOKED_AT]
    kind = _kind_of(instruction)
    if kind is None:
        return None
    told = [found[1].strip() for found in _SAID.finditer((last or system)[-LOOKED_AT:])]
    first = (told or questions or [""])[0]
    if kind == "title":
        title = title_of(first)
        return json.dumps({"title": title}) if _AS_JSON.search(instruction) else title
    return json.dumps({kind: ["Medicine"] if kind == "tags" else []})


def _kind_of(instruction: str) -> str | None:
    """What a chore asks for; None where it is none."""
    if _TITLE.search(instruction):
        return "title"
    if not _TASK.match(instruction):
        return None
    return next((name for name, pattern in _KINDS.items() if pattern.search(instruction)), None)


def title_of(question: str) -> str:
    """A question's first words as a title.

    >>> title_of("What is the first-line drug for trachoma?")
    'What is the first-line drug for ...'
    """
    words = question.strip().rstrip("?!. ").split()
    return " ".join(words[:TITLE_WORDS]) + (" ..." if len(words) > TITLE_WORDS else "") or "Medical question"
