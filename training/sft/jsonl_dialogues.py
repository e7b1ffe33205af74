"""Dialogues of JSON lines: rows are checked, completed, and read alike however they write a gold answer."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from medagent.errors import ConfigError
from medagent.evaluation.grading.grade import Verdict, grade
from medagent.evaluation.rollout_files import rollout_from
from medagent.policies.turn_ends import first_end
from medagent.protocol import TurnProtocol
from medagent.training.sft.dialogues import Demonstrations
from medagent.training.sft.tokenized_dialogues import LeftOut
from medagent.types import LETTERS, Rollout


class GivenDialogues(Demonstrations):
    """Dialogues of JSON lines, such as those that `medagent evaluate` and rollout records write.

    A line has at least "question" and "turns". A turn has "text" and, after a search, "passages". A passage has "text"
    and optionally "id", "title" and "source". Only right answers count, unless `all_verdicts`: a line's "verdict" says
    so. A line without a verdict is graded by its "gold" answer, and counts where it has none.
    """

    def __init__(self, path: str, min_searches: int = 0, all_verdicts: bool = False) -> None:
        self._path, self._min_searches, self._all = Path(path), min_searches, all_verdicts
        if not self._path.exists():
            raise ConfigError(f"demonstrations {path}: there is no such file. Give JSON lines.")

    def read(self, folder: Path, protocol: TurnProtocol) -> list[Rollout]:
        """See `Demonstrations.read`."""
        found: list[Rollout] = []
        left_out: Counter[LeftOut] = Counter()
        with self._path.open(encoding="utf-8-sig") as lines:
            for number, line in enumerate(lines, start=1):
                if not line.strip():
                    continue
                try:
                    row = json.loads(line)
                    rollout = rollout_from(completed(row, number, protocol))
                    kept = self._all or is_right(row, rollout)
                except (KeyError, TypeError, AttributeError, ValueError) as error:
                    raise ConfigError(
                        f"{self._path}, line {number}: found {line[:80]!r} ({error}), wanted a JSON object with "
                        "question and turns. Correct the line."
                    ) from error
                if not kept:
                    left_out[LeftOut.WRONG] += 1
                elif rollout.num_searches < self._min_searches:
                    left_out[LeftOut.FEW_SEARCHES] += 1
                else:
                    found.append(rollout)
        self.left_out = left_out
        return found


def completed(row: object, number: int, protocol: TurnProtocol) -> dict[str, Any]:
    """A row with everything that a hand-written one may leave out.

    Raises:
        ValueError: it is no dialogue, or says what cannot be read.
    """
    if not isinstance(row, dict):
        raise ValueError(f"found {type(row).__name__}, wanted an object")
    json.dumps(row, ensure_ascii=False).encode()  # half a character (a lone surrogate) is refused here
    _text(row, "question")
    options = _options(row.get("options"))
    turns = [_turn(turn, f"{number}.{at}", protocol) for at, turn in enumerate(_list(row, "turns"))]
    ends = tuple(block.end for block in protocol.blocks)
    last = turns[-1]["text"] if turns else ""
    answer = protocol.parse(last[: first_end(last, ends)]).answer  # where the run ends the turn
    plain = {"kind": "all", "gold_passage_ids": [], "meta": {}, "aliases": []}
    outcome = {
        "answer": answer,
        "policy_version": 0,
        "sample": 0,
        "reward": 0.0,
        "verdict": "correct",
        "stop_reason": "answered",
    }
    gold = _gold(row.get("gold"), options)
    own = {name: value for name, value in row.items() if value is not None}
    return {
        "question_id": f"line {number}",
        **plain,
        **outcome,
        **own,
        "options": options,
        "gold": gold,
        "turns": turns,
    }


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


def _turn(turn: object, name: str, protocol: TurnProtocol) -> dict[str, Any]:
    if not isinstance(turn, dict):
        raise ValueError(f"a turn: found {type(turn).__name__}, wanted an object with text")
    text = _text(turn, "text")
    passages = [_passage(each, f"{name}.{at}") for at, each in enumerate(turn.get("passages") or [])]
    query = turn.get("query") or protocol.parse(text).query
    return {**turn, "query": query, "passages": passages}


def _passage(passage: object, name: str) -> dict[str, Any]:
    if not isinstance(passage, dict):
        raise ValueError(f"a passage: found {type(passage).__name__}, wanted an object with text")
    _text(passage, "text")
    given = {key: value for key, value in passage.items() if value is not None}
    found = {"id": name, "title": "", "source": "", "score": 0.0, **given}
    return {**found, **{key: str(found[key]) for key in ("id", "title", "source")}}


def _options(options: object) -> dict[str, str]:
    """The options by their letters, in the letters' order."""
    if not options:
        return {}
    if isinstance(options, list):
        options = dict(zip(LETTERS, options, strict=False)) if len(options) <= len(LETTERS) else options
    if not isinstance(options, dict) or sorted(options) != list(LETTERS[: len(options)]):
        raise ValueError(
            f"options: found {json.dumps(options)[:80]}, wanted an object whose keys are the letters A, B and so on "
            f"without a gap, {LETTERS[-1]} at most, or a list"
        )
    return {letter: str(options[letter]) for letter in sorted(options)}


def _gold(gold: object, options: Mapping[str, str]) -> str:
    """The gold answer; with options the letter of one of them, which may be named by its text."""
    if gold is None or gold == "":
        return ""
    if isinstance(gold, list) and len(gold) == 1:
        gold = gold[0]
    if not options:
        if not isinstance(gold, str):
            raise ValueError(f"gold: found {gold!r}, wanted a text")
        return gold
    if isinstance(gold, str):
        if gold in options:
            return gold
        named = [letter for letter, option in options.items() if option.strip().lower() == gold.strip().lower()]
        if len(named) == 1:
            return named[0]
        if not named and gold.strip().upper() in options:
            return gold.strip().upper()
    raise ValueError(f"gold: found {gold!r}, wanted one of the letters {', '.join(options)}, or the text of one option")


def _text(row: Mapping[str, Any], name: str) -> str:
    if not isinstance(row.get(name), str):
        raise ValueError(f"{name}: found {row.get(name)!r:.60}, wanted a text")
    return str(row[name])


def _list(row: Mapping[str, Any], name: str) -> list[Any]:
    if not isinstance(row.get(name), list):
        raise ValueError(f"{name}: found {row.get(name)!r:.60}, wanted a list")
    return list(row[name])
