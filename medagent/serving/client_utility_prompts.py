"""Answers the prompts of chat programs for titles, tags, follow-ups and search queries, without the agent.

LibreChat and Open WebUI send them as messages in English, known by their words.
"""

import json
import re

from medagent.lazy import packaged
from medagent.serving.rewriting import phrases, standing_alone

LOOKED_AT = 4_000  # characters of an instruction
FILE = "utility_prompts.yaml"
SAYS = phrases(FILE, re.IGNORECASE)
_KINDS = {kind: re.compile(said, re.IGNORECASE) for kind, said in packaged("medagent.serving", FILE)["kinds"].items()}
TITLE_WORDS = 6
_AS_JSON = re.compile(r"\bjson\b", re.IGNORECASE)


def utility_answer(system: str, last: str, questions: list[str]) -> str | None:
    """The answer to a utility prompt: `last` of the user or `system` after `questions`. None if it is a question."""
    instruction = (last or system)[:LOOKED_AT]
    told = [found[1].strip(' "\u201c\u201d') for found in SAYS["said"].finditer((last or system)[-LOOKED_AT:])]
    follow_up = SAYS["follow_up"].search(last)
    if follow_up and SAYS["condense"].search(instruction):
        return standing_alone([*told, follow_up[1][:LOOKED_AT].strip()])
    kind = _kind_of(instruction)
    if kind is None:
        asks = system[:LOOKED_AT]
        only = SAYS["title"].search(asks) and SAYS["nothing_else"].search(asks) and not SAYS["answers_too"].search(asks)
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
    return SAYS["said"].sub(" ", SAYS["history"].sub(" ", prompt))


def _kind_of(instruction: str) -> str | None:
    """The kind of a utility prompt; None for other messages."""
    if SAYS["title"].search(instruction):
        return "title"
    if SAYS["summary"].match(instruction):
        return "summary"
    if SAYS["emoji"].search(instruction):
        return "emoji"
    if not SAYS["task"].match(instruction):
        return None
    return next((name for name, pattern in _KINDS.items() if pattern.search(instruction)), None)


def title_of(question: str) -> str:
    """A question's first words as a title."""
    words = question.strip().rstrip("?!. ").split()
    return " ".join(words[:TITLE_WORDS]) + (" ..." if len(words) > TITLE_WORDS else "") or "Medical question"
