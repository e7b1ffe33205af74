"""Rollouts as readable JSON lines, and back again. Tokens are left out: those belong to training."""

import gzip
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

from medagent.answer_forms import FORM_HINTS
from medagent.errors import ConfigError
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.files import write_whole
from medagent.policies.turn_ends import first_end
from medagent.protocol import TurnProtocol
from medagent.retrieval.passages import Hit, Passage
from medagent.tool_calls import ToolCall
from medagent.types import LETTERS, Question, Rollout, StopReason, Turn


def readable(rollout: Rollout) -> dict[str, Any]:
    """A rollout as plain data: the question, each turn with what it retrieved, the grade."""
    result, question = grade(rollout), rollout.question
    return {
        "question": question.text,
        "options": dict(zip(question.letters, question.options, strict=True)),
        "gold": question.answer,
        "aliases": list(question.aliases),
        **_form(question),
        "kind": question.kind,
        "gold_passage_ids": list(question.gold_passage_ids),
        "meta": dict(question.meta),
        "turns": [
            {
                "text": turn.text,
                "query": turn.query,
                "passages": [
                    {"id": "", "title": "", "source": "", **hit.passage.to_json(), "score": hit.score}
                    for hit in turn.hits
                ],
                "tokens": len(turn.token_ids) - turn.forced_prefix,
                **({} if _searches(turn) else {"calls": [asdict(call) for call in turn.calls]}),
            }
            for turn in rollout.turns
        ],
        "answer": rollout.answer,
        **({"quoted": True} if rollout.turns and rollout.turns[-1].quoted else {}),
        "letter": result.letter,
        "lenient_letter": result.lenient_letter,
        "verdict": result.verdict.value,
        "cited": list(result.cited),
        "reward": rollout.reward,
        "stop_reason": rollout.stop_reason.value,
        **({"error": rollout.error} if rollout.error else {}),
        "policy_version": rollout.policy_version,
        "question_id": question.id,
        "sample": rollout.sample,
    }


def _form(question: Question) -> dict[str, Any]:
    """The form of an answer where it is not one text or letter, the items of a list, and the bounds of a number."""
    form: dict[str, Any] = {"form": question.form} if question.form != "text" else {}
    form |= {"bounds": question.bounds} if question.bounds else {}
    return form | ({"items": [list(item) for item in question.items]} if question.items else {})


def _searches(turn: Turn) -> bool:
    """Whether the turn's query says all that it called."""
    return not turn.calls or turn.calls == (ToolCall("search", {"query": turn.query}),)


def rollout_from(row: Mapping[str, Any]) -> Rollout:
    """The rollout of a readable row: all that grading, summaries and reports need.

    Tokens and log-probs are not in it. Raises `ValueError` for a form of answer that is none.
    """
    form = row.get("form", "text")
    if form not in FORM_HINTS:
        raise ValueError(f"form: found {form!r}, wanted one of {', '.join(FORM_HINTS)}")
    question = Question(
        id=row["question_id"],
        text=row["question"],
        options=tuple(row["options"].values()),
        answer=row["gold"],
        kind=row["kind"],
        gold_passage_ids=tuple(row["gold_passage_ids"]),
        meta=row["meta"],
        aliases=tuple(row["aliases"]),
        form=form,
        items=tuple(map(tuple, row.get("items", ()))),
        bounds=tuple(row["bounds"]) if row.get("bounds") else None,
    )
    turns = list[Turn]()
    for turn in row["turns"]:
        hits = tuple(_hit(dict(each)) for each in turn["passages"])
        calls = tuple(ToolCall(**call) for call in turn.get("calls", ()))
        turns.append(Turn((), (), turn["text"], turn["query"], hits=hits, calls=calls))
    if turns and row["answer"] is not None:
        turns[-1] = Turn((), (), turns[-1].text, answer=row["answer"], quoted=row.get("quoted", False))
    stop, right = StopReason(row["stop_reason"]), row["verdict"] == "correct"
    told = row["policy_version"], row["sample"], row["reward"], right, row.get("error", "")
    return Rollout(question, (), tuple(turns), stop, *told)


def _hit(row: dict[str, Any]) -> Hit:
    score = row.pop("score")
    return Hit(Passage.from_json(row), score)


def write_records(path: Path, rollouts: Sequence[Rollout]) -> None:
    """Write rollouts as JSON lines, atomically."""
    write_lines(path, map(readable, rollouts))


def write_lines(path: Path, rows: Iterable[Mapping[str, Any]]) -> None:
    """Write rows as JSON lines, atomically; compressed where the name ends in .gz."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))


Read = TypeVar("Read")


def read_lines(path: Path, read: Callable[[Any, int], Read], *, wanted: str) -> Iterator[Read]:
    """The result of `read` for each JSON line and its number.

    Raises:
        ConfigError: `read` raises an error; it names the line and what is `wanted`.
    """
    with (gzip.open if path.suffix == ".gz" else open)(path, "rt", encoding="utf-8-sig") as lines:
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                made = read(json.loads(line), number)
            except (KeyError, TypeError, AttributeError, ValueError) as error:
                raise ConfigError(
                    f"{path}, line {number}: found {line[:80]!r} ({error}), wanted {wanted}. Correct the line."
                ) from error
            yield made


def given_rollout(row: object, number: int, protocol: TurnProtocol) -> Rollout:
    """The rollout of a row that a person may have written, on the line of that number.

    It needs "question" and "turns". A turn needs "text", and so does each of its "passages".

    Raises:
        ValueError: it is no dialogue, or says what cannot be read.
    """
    given = _checked(row, "the line", dict)
    json.dumps(given, ensure_ascii=False).encode()  # half a character (a lone surrogate) is refused here
    _checked(given.get("question"), "question", str)
    options = _options(given.get("options"))
    turns = _checked(given.get("turns"), "turns", list)
    turns = [_turn(turn, f"{number}.{at}", protocol) for at, turn in enumerate(turns)]
    last = turns[-1]["text"] if turns else ""
    end = first_end(last, tuple(block.end for block in protocol.blocks))  # where the run ends the turn
    completed = {
        "kind": "all",
        "gold_passage_ids": [],
        "meta": {},
        "aliases": [],
        "policy_version": 0,
        "sample": 0,
        "reward": 0.0,
        "verdict": "correct",
        "stop_reason": "answered",
        "question_id": f"line {number}",
        "answer": protocol.parse(last[:end]).answer,
        **{name: value for name, value in given.items() if value is not None},
        "options": options,
        "gold": _gold(given.get("gold"), options),
        "turns": turns,
    }
    return rollout_from(completed)


def is_right(row: Mapping[str, Any], rollout: Rollout) -> bool:
    """Whether a dialogue answers right: as its verdict says, else by its gold answer; without both it does.

    Raises:
        ValueError: the verdict is none of `Verdict`.
    """
    if "verdict" not in row:
        return not rollout.question.answer or grade(rollout).correct
    verdict = row["verdict"]
    if isinstance(verdict, bool) or verdict in (None, ""):
        return bool(verdict)
    known = [each.value for each in Verdict]
    if str(verdict).lower() not in known:
        raise ValueError(f"verdict: found {verdict!r}, wanted one of {', '.join(known)}, true or false")
    return str(verdict).lower() == Verdict.CORRECT


def _checked(value: object, name: str, kind: type[Read]) -> Read:
    if not isinstance(value, kind):
        words: Mapping[type, str] = {str: "a text", list: "a list", dict: "an object"}
        raise ValueError(f"{name}: found {value!r:.60}, wanted {words[kind]}")
    return value


def _turn(turn: object, name: str, protocol: TurnProtocol) -> dict[str, Any]:
    given = _checked(turn, "a turn", dict)
    text = _checked(given.get("text"), "text", str)
    passages = [_passage(each, f"{name}.{at}") for at, each in enumerate(given.get("passages") or [])]
    return {**given, "query": given.get("query") or protocol.parse(text).query, "passages": passages}


def _passage(passage: object, name: str) -> dict[str, Any]:
    given = _checked(passage, "a passage", dict)
    _checked(given.get("text"), "text", str)
    given = {key: value for key, value in given.items() if value is not None}
    found = {"id": name, "title": "", "source": "", "score": 0.0, **given}
    return {**found, **{key: str(found[key]) for key in ("id", "title", "source")}}


def _options(options: Any) -> dict[str, str]:
    """The options by their letters, in the letters' order."""
    named = dict(zip(LETTERS, options, strict=False)) if isinstance(options, list) else options or {}
    if not isinstance(named, dict) or len(named) < len(options or ()) or sorted(named) != list(LETTERS[: len(named)]):
        wanted = f"an object whose keys are the letters A, B and so on without a gap, {LETTERS[-1]} at most, or a list"
        raise ValueError(f"options: found {json.dumps(options)[:80]}, wanted {wanted}")
    return {letter: str(named[letter]) for letter in sorted(named)}


def _gold(gold: Any, options: Mapping[str, str]) -> str:
    """The gold answer; with options the letter of one of them, which may be named by its text."""
    gold = gold[0] if isinstance(gold, list) and len(gold) == 1 else "" if gold is None else gold
    if isinstance(gold, str):
        if not gold or not options or set(gold.split(", ")) <= options.keys():
            return gold
        said = gold.strip().lower()
        named = [letter for letter, option in options.items() if option.strip().lower() == said]
        named = named or [letter for letter in options if letter.lower() == said]
        if len(named) == 1:
            return named[0]
    wanted = f"one of the letters {', '.join(options)}, or the text of one option" if options else "a text"
    raise ValueError(f"gold: found {gold!r}, wanted {wanted}")
