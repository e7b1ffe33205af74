"""Where passages show an answer, and in which words: judged on what an agent is shown, not on what was found."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from transformers import PreTrainedTokenizerBase

from medagent.evaluation.grading.option_named import normalise
from medagent.protocol import TurnProtocol
from medagent.retrieval.passages import Hit, Passage, shown_of
from medagent.training.agent_data import AgentSettings
from medagent.training.sft.queries import Rarity, stems
from medagent.types import Question
from medagent.untrusted_text import harmless, harmless_passages

ON_TOPIC = 0.3  # share of a query's weight that a passage must hold to be about it
# Answers that are judgements. They stand in texts by chance, so only gold passages show them.
_JUDGEMENTS = frozenset(("yes", "no", "maybe", "true", "false", "none"))
_PART = re.compile(r"[^\W_]+")
_BEFORE = r"(?<!\w)(?<!\d[.,])(?<!\bnon-)(?<!\bnon )(?<!\bnot )(?<!\bno )(?<!\banti-)"
_AFTER = r"(?![\w+])(?!-(?!\w))(?![.,]\d)"
_UNBOUNDED = 1_000_000  # tokens


Shown = list[tuple[Hit, str]]
"""The hits of a search that an agent is shown, and their texts as it reads them."""


@dataclass(frozen=True)
class Evidence:
    """A passage that shows the answer.

    `number` counts from 1 within its search. `wording` is the answer as the passage words it, empty where it judges.
    """

    number: int
    wording: str


def shown(hits: Sequence[Hit], settings: AgentSettings, tokenizer: PreTrainedTokenizerBase) -> Shown:
    """What `settings` let an agent see of a search's hits; the last passage may be cut."""
    protocol, room = settings.protocol, settings.limits.max_observation_tokens
    passages = harmless_passages(tokenizer, [hit.passage for hit in hits])

    def read(some: Sequence[Passage], limit: int) -> tuple[str, int]:
        ids, count = protocol.encode_observation(tokenizer, some, first_number=1, max_tokens=limit)
        return str(tokenizer.decode(ids)), count

    text, count = read(passages, room)
    kept = passages[:count]
    texts = [protocol.neutralise(passage.shown_text) for passage in kept]
    if kept and text != read(kept, _UNBOUNDED)[0]:
        before = read(kept[:-1], room)[0] if count > 1 else ""
        texts[-1] = _after_what_is_common(text, before)
    return list(zip(hits[:count], texts, strict=True))


def _after_what_is_common(text: str, other: str) -> str:
    same = next((at for at, (one, two) in enumerate(zip(text, other, strict=False)) if one != two), len(other))
    return text[same:]


def golds_of(question: Question, protocol: TurnProtocol, tokenizer: PreTrainedTokenizerBase) -> tuple[str, ...]:
    """The texts of the gold answer as an agent may read them: the option's, or the answer and its aliases."""
    if question.options:
        at = question.letters.find(question.answer) if question.answer else -1
        texts = [question.options[at]] if at >= 0 else []
    else:
        texts = [question.answer, *question.aliases]
    plain = (protocol.neutralise(harmless(tokenizer, text)) for text in texts)
    return tuple(dict.fromkeys(filter(None, plain)))


def evidence_in(found: Shown, question: Question, golds: Sequence[str], query: str, rarity: Rarity) -> Evidence | None:
    """The passage of a search that shows the answer best.

    Where the question names gold passages, only these count, and pieces of these documents. Elsewhere a passage must be
    about the query: the same words stand in texts on other things.

    A wording that grading takes for right goes first, then what shares more with the query, then the better rank.
    """
    gold_ids = set(question.gold_passage_ids)
    right = set(map(normalise, golds))
    wanted = stems(query) - stems(" ".join(golds)) or stems(query)
    best: tuple[tuple[bool, float, int], Evidence] | None = None
    for number, (hit, text) in enumerate(found, start=1):
        passage = hit.passage
        topic = rarity.share(wanted, text)
        if gold_ids and not shown_of(gold_ids, [passage]):
            continue
        if not gold_ids and topic < ON_TOPIC:
            continue
        worded = _wording(text, golds, right, judged=bool(gold_ids))
        if worded is None:
            continue
        key = (normalise(worded) in right, topic, -number)
        if best is None or key > best[0]:
            best = key, Evidence(number, worded)
    return best[1] if best else None


def says(text: str, golds: Sequence[str]) -> bool:
    """Whether a text says one of the answers."""
    return any(_pattern(gold).search(text) for gold in golds)


def _wording(text: str, golds: Sequence[str], right: set[str], *, judged: bool) -> str | None:
    """The answer in a passage's words; a judgement has none and needs a gold passage."""
    if right and right <= _JUDGEMENTS:
        return "" if judged else None
    spoken = (gold for gold in golds if normalise(gold) not in _JUDGEMENTS)
    found = [match[0] for gold in spoken for match in _pattern(gold).finditer(text)]
    return min(found, key=lambda each: normalise(each) not in right, default=None)


@lru_cache(maxsize=20_000)
def _pattern(answer: str) -> re.Pattern[str]:
    """What says an answer: its words in any case, joined by spaces or hyphens alike, the last one in either number.

    "Non-Hodgkin lymphoma" does not say "Hodgkin lymphoma", nor "Rh+" "Rh", nor "12.5" "12".
    """
    parts = list(_PART.finditer(answer))
    if not parts:
        return re.compile(r"(?!)")
    pattern = re.escape(answer[: parts[0].start()])
    for part, following in zip(parts, [*parts[1:], None], strict=True):
        if following is None:
            pattern += _either_number(part[0]) + re.escape(answer[part.end() :].rstrip(" .,;:"))
            break
        between = answer[part.end() : following.start()]
        loose = r"[\s\-‐‑–/]{1,2}" if re.fullmatch(r"[\s\-‐‑–/]+", between) else re.escape(between)
        pattern += re.escape(part[0]) + loose
    return re.compile(_BEFORE + pattern + _AFTER, re.IGNORECASE)


def _either_number(word: str) -> str:
    """A pattern of a noun in singular and plural.

    >>> bool(re.fullmatch(_either_number("virus"), "viruses")), bool(re.fullmatch(_either_number("biopsies"), "biopsy"))
    (True, True)
    """
    if len(word) < 3 or not word.isalpha() or not word.isascii():
        return re.escape(word)
    bases = {word}
    if word.endswith("s") and not word.endswith(("ss", "us", "is")):
        bases.add(word[:-1])
    if word.endswith("es"):
        bases.add(word[:-2])
    forms = {form for base in bases for form in (base, base + "s", base + "es")}
    forms |= {base[:-1] + "ies" for base in bases if base.endswith("y")}
    forms |= {word[:-3] + "y"} if word.endswith("ies") else set()
    return f"(?:{'|'.join(sorted(map(re.escape, forms), key=len, reverse=True))})"
