"""What chat programs ask of a model besides questions: titles, tags, follow-ups and search queries of a conversation.

They are answered here in a few words of the conversation itself, without the agent. LibreChat and Open WebUI send them
as messages in English, known by their words.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable

_TASK = re.compile(r"^\W*(?:#+\s*task:|\[task\])", re.IGNORECASE)
_TITLE = re.compile(
    r"\b(?:generate|create|write|provide|give|suggest|summari[sz]e|come up with)\b[^.\n]{0,80}"
    r"\b(?:title|name|headline)\b[^.\n]{0,60}"
    r"\b(?:conversation|chat|thread|dialog\w*|discussion|message|prompt|query|request|it)\b"
    r"|\|\|>title:|\b(?:concise|short|\d+-word)\b[^.\n]{0,40}\btitle\b",
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
    instruction = last if _TASK.match(last) or _asks_for_title(last) else "" if last else system
    if not instruction or not (_TASK.match(instruction) or _asks_for_title(instruction)):
        return None
    told = [found[1].strip() for found in _SAID.finditer(instruction)]
    first = (told or questions or [""])[0]
    kind = (
        "title"
        if _TITLE.search(instruction)
        else next((name for name, pattern in _KINDS.items() if pattern.search(instruction)), "title")
    )
    forms: dict[str, Callable[[], str]] = {
        "tags": lambda: json.dumps({"tags": ["Medicine"]}),
        "follow_ups": lambda: json.dumps({"follow_ups": []}),
        "queries": lambda: json.dumps({"queries": []}),
        "title": lambda: json.dumps({"title": title_of(first)}) if _AS_JSON.search(instruction) else title_of(first),
    }
    return forms[kind]()


def title_of(question: str) -> str:
    """A question's first words as a title.

    >>> title_of("What is the first-line drug for trachoma?")
    'What is the first-line drug for ...'
    """
    words = question.strip().rstrip("?!. ").split()
    return " ".join(words[:TITLE_WORDS]) + (" ..." if len(words) > TITLE_WORDS else "") or "Medical question"


def _asks_for_title(text: str) -> bool:
    return bool(_TITLE.search(text[:1_000]))
