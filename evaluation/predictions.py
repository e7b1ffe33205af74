"""The record of each question asked, one JSON line each: the rollout, how it was asked, and the policy's confidence."""

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from time import perf_counter
from typing import Any

from transformers import PreTrainedTokenizerBase

from medagent.errors import ConfigError
from medagent.evaluation.answer_folder import JsonLog
from medagent.evaluation.grading.grade import grade
from medagent.evaluation.rollout_files import readable, rollout_from
from medagent.evaluation.search_recall import SearchRecall
from medagent.files import write_whole
from medagent.protocol import TurnProtocol
from medagent.types import Rollout

Key = tuple[str, str, int, int]
Used = dict[str, float]


@dataclass(frozen=True)
class Prediction:
    """One answer.

    `confidence` in (0, 1] is the policy's probability of what it wrote, None where it gives no probabilities. `recall`
    is None where the question names no gold passages, or the mode does not search.
    """

    mode: str
    rotation: int
    rollout: Rollout
    confidence: float | None
    recall: SearchRecall | None = None

    @property
    def key(self) -> Key:
        """The identity of a prediction: mode, question, rotation, sample."""
        return self.mode, self.rollout.question.id, self.rotation, self.rollout.sample

    def to_json(self) -> dict[str, Any]:
        """A readable row."""
        asked = {"mode": self.mode, "rotation": self.rotation, "confidence": self.confidence}
        recall = {"search_recall": asdict(self.recall)} if self.recall else {}
        return {**asked, **recall, **readable(self.rollout)}

    @staticmethod
    def from_json(row: dict[str, Any]) -> "Prediction":
        """The inverse of `to_json`."""
        recall = SearchRecall(**row["search_recall"]) if "search_recall" in row else None
        return Prediction(row["mode"], row["rotation"], rollout_from(row), row["confidence"], recall)


def confidence(rollout: Rollout, tokenizer: PreTrainedTokenizerBase, protocol: TurnProtocol) -> float | None:
    """The probability of the answer up to and with its letter, at temperature 1 where it was greedy.

    It is exp of the sum of its tokens' log-probs. None without one strict letter, and where the policy gives no
    log-probs (all are exactly 0).
    """
    letter = grade(rollout).letter
    if letter is None or len(letter) > 1:
        return None
    turn = rollout.turns[-1]
    if not any(turn.logprobs):
        return None
    decoded = [str(tokenizer.decode(list(turn.token_ids[:count]))) for count in range(len(turn.token_ids) + 1)]
    opening = protocol.answer.start or "\n"  # without tags the last line is the answer
    start = max(0, decoded[-1].rstrip().rfind(opening) + len(opening))
    mark = re.search(rf"\({letter}\)|(?<!\w){letter}(?!\w)", decoded[-1][start:])
    if mark is None:
        return None
    place = start + decoded[-1][start:].index(letter, mark.start())
    first = next(count for count, text in enumerate(decoded) if len(text) > start) - 1
    last = next(count for count, text in enumerate(decoded) if len(text) > place)
    return min(1.0, math.exp(sum(turn.logprobs[max(first, turn.forced_prefix) : last])))


class PredictionLog(JsonLog):
    """predictions.jsonl, to which answers are appended as they come.

    A prediction that ended in an error may be asked again. Its last row counts, and the usage of all its rows.
    """

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._began = perf_counter()

    def append(self, prediction: Prediction) -> None:
        """Write one prediction with its usage: an endpoint's, and the seconds since the one before it."""
        now = perf_counter()
        usage = [asdict(turn.usage) for turn in prediction.rollout.turns if turn.usage is not None]
        used = added({"questions": 1, "seconds": round(now - self._began, 3)}, *usage)
        self._began = now
        self.write({**prediction.to_json(), "usage": used})

    def read(self) -> list[Prediction]:
        """The predictions of all whole lines."""
        found = [self._parse(number, line) for number, line in enumerate(self.lines(), start=1)]
        return list({prediction.key: prediction for prediction in found}.values())

    def used(self) -> Used:
        """The usage of all rows."""
        return added(*(json.loads(line).get("usage", {}) for line in self.lines()))

    def compact(self) -> None:
        """Leave one row per prediction."""
        rows: dict[tuple[object, ...], dict[str, Any]] = {}
        for row in map(json.loads, self.lines()):
            key = tuple(row[name] for name in ("mode", "question_id", "rotation", "sample"))
            row["usage"] = added(row.get("usage", {}), rows.pop(key, {}).get("usage", {}))
            rows[key] = row
        write_whole(self.path, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows.values()))

    def _parse(self, number: int, line: str) -> Prediction:
        try:
            return Prediction.from_json(json.loads(line))
        except KeyError as error:
            remedy = "Another version wrote the file: evaluate again, with another --out"
            told = f"found no field {error}, which this version writes. {remedy}"
            raise ConfigError(f"{self.path}, line {number}: {told}.") from error
        except (json.JSONDecodeError, TypeError, ValueError) as error:
            remedy = "Delete that line to have its question asked again, or give another --out"
            raise ConfigError(f"{self.path}, line {number}: damaged ({error!r}). {remedy}.") from error


def added(*parts: Mapping[str, float]) -> Used:
    """The sums by name."""
    total: Counter[str] = Counter()
    for part in parts:
        total.update(part)
    return dict(total)


def usage_line(used: Mapping[str, float], price: Mapping[str, float], *, answers: int) -> str:
    """The usage as a sentence, with the `answers` not counted. `price` is per million "input" and "output" tokens."""
    if not used.get("questions"):
        return ""
    line = f"Asked {used['questions']:,.0f} times in {used['seconds']:,.0f} s"
    line += f" ({used['seconds'] / used['questions']:.2f} s each)"
    if "requests" in used:
        line += f", {used['requests']:,.0f} requests, {used['prompt_tokens']:,.0f} tokens in and "
        line += f"{used['completion_tokens']:,.0f} out"
        if price:
            cost = used["prompt_tokens"] * price.get("input", 0) + used["completion_tokens"] * price.get("output", 0)
            line += f", cost {cost / 1e6:.2f}"
    if used["questions"] < answers:
        line += f"; {answers - used['questions']:,.0f} answers of the folder are not counted in this"
    return line + "."
