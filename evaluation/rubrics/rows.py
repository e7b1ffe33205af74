"""The material of a judge: HealthBench's cases, and physicians' labels on its criteria.

Sources: HealthBench and its meta-evaluation (arXiv 2505.08775); HealthBench Professional (arXiv 2604.27470).
"""

import math
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from medagent.errors import InputError
from medagent.evaluation.benchmarks.rows import Row, read_rows, text_field

Message = dict[str, str]
PROFESSIONAL_TAGS = ("use_case", "type", "difficulty", "specialty")  # fields that group the cases
ROLES = ("system", "developer", "user", "assistant")


@dataclass(frozen=True)
class Criterion:
    """Something that a reply should do, or with negative points should not do."""

    text: str
    points: float
    tags: tuple[str, ...] = ()


@dataclass(frozen=True)
class Case:
    """A conversation that ends with the user's turn, and the criteria for the reply to it.

    `professional`: of HealthBench Professional, whose score is adjusted for the reply's length.
    """

    id: str
    messages: tuple[Message, ...]
    criteria: tuple[Criterion, ...]
    tags: tuple[str, ...] = ()
    professional: bool = False


@dataclass(frozen=True)
class Labelled:
    """A reply, one criterion, and whether each of several people found that the reply meets it."""

    id: str
    messages: tuple[Message, ...]
    reply: str
    criterion: str
    labels: tuple[bool, ...]


def read_rubric_rows(path: Path) -> list[Any]:
    """The rows of JSON lines as `Case` or `Labelled`; what they are shows in their fields.

    `rubrics` beside `prompt`: cases, as `rubric_items` beside `conversation` in HealthBench Professional. `rubric`,
    `completion` and `binary_labels`: labels.

    Raises:
        InputError: with file and line.
    """
    rows = list(read_rows(path, kind="jsonl", notes=Counter()))
    if not rows:
        raise InputError(f"{path}: holds no row, wanted JSON lines with rubrics or binary_labels.")
    first = rows[0].data
    kinds = {"rubrics": _case, "rubric_items": _case, "binary_labels": _labelled}
    read = next((read for name, read in kinds.items() if name in first), None)
    if read is None:
        wanted = "'rubrics' or 'rubric_items' (cases), or 'binary_labels' (labels)"
        raise rows[0].wrong(f"the fields {sorted(first)}", wanted)
    found: list[Any] = [read(row, number) for number, row in enumerate(rows)]
    repeated = [name for name, count in Counter(row.id for row in found).items() if count > 1]
    if repeated:
        raise InputError(f"{path}: the id {repeated[0]!r} occurs twice. Give each row its own.")
    return found


def _case(row: Row, _: int) -> Case:
    professional = "rubric_items" in row.data
    name = "rubric_items" if professional else "rubrics"
    found = row.data.get(name)
    if not isinstance(found, list) or not found:
        raise row.wrong(f"{name} {found!r}", "a list of criteria")
    criteria = tuple(_criterion(row, each) for each in found)
    if not any(criterion.points > 0 for criterion in criteria):
        raise InputError(f"{row.where}: no criterion has points above 0, so no score can be given. Leave the row out.")
    tags = _texts(row.data.get("example_tags"))
    if professional:
        tags = tuple(str(row.data[name]) for name in PROFESSIONAL_TAGS if row.data.get(name))
    return Case(text_field(row, "prompt_id", "id"), _messages(row), criteria, tags, professional)


def _criterion(row: Row, found: Any) -> Criterion:
    points = found.get("points") if isinstance(found, dict) else None
    is_number = isinstance(points, int | float) and not isinstance(points, bool) and math.isfinite(points)
    text = str(found.get("criterion") or found.get("criterion_text") or "") if is_number else ""
    if points is None or not text.strip():
        raise row.wrong(f"the criterion {found!r}", "'criterion' or 'criterion_text', and a number of 'points'")
    return Criterion(text, float(points), _texts(found.get("tags")))


def _labelled(row: Row, number: int) -> Labelled:
    labels = row.data.get("binary_labels")
    if not isinstance(labels, list) or not labels or any(label not in (0, 1) for label in labels):
        raise row.wrong(f"binary_labels {labels!r}", "a list of true and false")
    given = row.data.get("rubric")
    criterion = given.get("criterion") if isinstance(given, dict) else given
    if not isinstance(criterion, str) or not criterion.strip():
        raise row.wrong(f"rubric {given!r}", "the text of one criterion")
    name = f"{text_field(row, 'completion_id', 'prompt_id', 'id')}/{number}"  # a completion has several criteria
    return Labelled(name, _messages(row), text_field(row, "completion"), criterion, tuple(map(bool, labels)))


def _messages(row: Row) -> tuple[Message, ...]:
    found = row.data.get("prompt", row.data.get("conversation"))
    if isinstance(found, dict):
        found = found.get("messages")
    if isinstance(found, str) and found.strip():
        return ({"role": "user", "content": found},)
    good = isinstance(found, list) and all(
        isinstance(each, dict) and each.get("role") in ROLES and isinstance(each.get("content"), str) for each in found
    )
    if not isinstance(found, list) or not good or not found or found[-1]["role"] != "user":
        wanted = "a text, or messages with role and content of which the last is the user's"
        raise row.wrong(f"prompt {str(found)[:80]!r}", wanted)
    return tuple({"role": each["role"], "content": each["content"]} for each in found)


def _texts(found: Any) -> tuple[str, ...]:
    return tuple(map(str, found)) if isinstance(found, list) else ()
