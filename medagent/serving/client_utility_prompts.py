"""Answers the prompts of chat programs for titles, tags, follow-ups and search queries, without the agent.

LibreChat and Open WebUI send them as messages in English, known by their words.
"""

import json
import re

from medagent.serving.rewriting import standing_alone

_TASK = re.compile(r"^[^\w#\[]{0,20}(?:#{1,6}\s{0,3}task:|\[task\])", re.IGNORECASE)
LOOKED_AT = 4_000  # characters of an instruction
_TALK = r"(?:conversation|chat|thread|dialog\w{0,5}|discussion)"
_THE_TALK = rf"\b(?:the|this|our|your|following|user['\u2019]?s?|a user begins a|an?(?= {_TALK}))\s(?:\w+\s)?{_TALK}\b"
_TITLE = re.compile(
    rf"\b(?:generate|create|write|provide|suggest|summari[sz]e|come up with|reply with|respond with)\b[^.\n]{{0,80}}"
    rf"\b(?:title|headline)\b(?! of the (?!{_TALK}))[^.\n]{{0,60}}{_THE_TALK}"
    rf"|\bsummari[sz]e\b[^.\n]{{0,60}}(?:{_THE_TALK}|\bfirst message\b)[^.\n]{{0,20}}\binto an?\b[^.\n]{{0,20}}"
    rf"\btitle\b|\b(?:give|name) this {_TALK}\b[^.\n]{{0,40}}\b(?:name|characters)\b"
    r"|\banaly[sz]e this conversation and provide\b"
    r"|\|\|>title:",
    re.IGNORECASE,
)
# A system message that only asks for a title says how long it may be, or that nothing else is wanted.
_NOTHING_ELSE = re.compile(r"\b(?:words?|characters?|only|nothing else)\b|\|\|>title:", re.IGNORECASE)
_ANSWERS_TOO = re.compile(r"\b(?:then|also|and) (?:answer|reply|respond|help)\b|\balso\b", re.IGNORECASE)
_SUMMARY = re.compile(rf"^\W*summari[sz]e {_THE_TALK}", re.IGNORECASE)
_CONDENSE = re.compile(r"\bstandalone question\b", re.IGNORECASE)
_FOLLOW_UP = re.compile(r"\bfollow[- ]?up (?:input|question)\s*:\s*(.+)", re.IGNORECASE)
_EMOJI = re.compile(r"\bthrough a fitting emoji\b", re.IGNORECASE)
_KINDS: dict[str, re.Pattern[str]] = {
    "text": re.compile(r"\bautocompletion system\b", re.I),
    "prompt": re.compile(r"\bprompt for a[mn]? image\b", re.I),
    "tags": re.compile(
        r"\btags?\b.{0,80}\b(?:categori[sz]\w*|themes?|chat|conversation)\b|\bgenerate\b.{0,30}\btags\b", re.I
    ),
    "follow_ups": re.compile(r"\bfollow[- ]?ups?\b|\bsuggest\b.{0,60}\b(?:questions|prompts)\b", re.I),
    "queries": re.compile(r"\bsearch quer(?:y|ies)\b", re.I),
    "title": re.compile(r"\btitle\b", re.I),
}
# Both take linear time: anybody may send them text of any kind.
_SAID = re.compile(r"(?:^|\n)[^\S\n]*(?:\|\|>[^\S\n]*)?(?:user|human|q)[^\S\n]*:\s*(\S.*)", re.IGNORECASE)
_HISTORY = re.compile(r"<chat_history>(?:(?!<chat_history>).)*?</chat_history>", re.IGNORECASE | re.DOTALL)
TITLE_WORDS = 6
_AS_JSON = re.compile(r"\bjson\b", re.IGNORECASE)


def utility_answer(system: str, last: str, questions: list[str]) -> str | None:
    """The answer to a utility prompt: `last` of the user or `system` after `questions`. None if it is a question."""
    instruction = (last or system)[:LOOKED_AT]
    told = [found[1].strip(' "\u201c\u201d') for found in _SAID.finditer((last or system)[-LOOKED_AT:])]
    follow_up = _FOLLOW_UP.search(last)
    if follow_up and _CONDENSE.search(instruction):
        return standing_alone([*told, follow_up[1][:LOOKED_AT].strip()])
    kind = _kind_of(instruction)
    if kind is None:
        asks = system[:LOOKED_AT]
        only = _TITLE.search(asks) and _NOTHING_ELSE.search(asks) and not _ANSWERS_TOO.search(asks)
        return title_of((told or [last])[0]) if only and not questions else None
    first = (told or questions or [""])[0]
    if kind == "title":
        title = title_of(first)
        return json.dumps({"title": title}) if _AS_JSON.search(instruction) else title
    if kind == "summary":
        return "The user asked: " + " ".join(questions or told)
    if kind == "emoji":
        return "\N{SPEECH BALLOON}"
    empty: dict[str, object] = {"tags": ["Medicine"], "text": "", "prompt": title_of(first)}
    return json.dumps({kind: empty.get(kind, [])})


def without_talk(prompt: str) -> str:
    """A utility prompt without the conversation that it quotes."""
    return _SAID.sub(" ", _HISTORY.sub(" ", prompt))


def _kind_of(instruction: str) -> str | None:
    """The kind of a utility prompt; None for other messages."""
    if _TITLE.search(instruction):
        return "title"
    if _SUMMARY.match(instruction):
        return "summary"
    if _EMOJI.search(instruction):
        return "emoji"
    if not _TASK.match(instruction):
        return None
    return next((name for name, pattern in _KINDS.items() if pattern.search(instruction)), None)


def title_of(question: str) -> str:
    """A question's first words as a title."""
    words = question.strip().rstrip("?!. ").split()
    return " ".join(words[:TITLE_WORDS]) + (" ..." if len(words) > TITLE_WORDS else "") or "Medical question"
