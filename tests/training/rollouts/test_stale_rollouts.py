from __future__ import annotations

import json
from dataclasses import fields
from pathlib import Path

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.passages import Hit, Passage
from medagent.tool_calls import ToolCall
from medagent.training.rollouts.collection import read_rollouts, write_rollouts
from medagent.types import Question, Rollout, StopReason, Turn, Usage

PASSAGE = Passage("p", "gout", "Allopurinol\n100 mg", year=2021, about=Bibliography(authors=("A", "B"), date="2021"))
TURN = Turn(
    (9, 10),
    (-0.1, float("-inf")),
    "<search>gout</search>",
    query="gout",
    answer="100 mg",
    hits=(Hit(PASSAGE, 0.30000000000000004),),
    observation_ids=(3,),
    forced_prefix=1,
    reward=0.25,
    usage=Usage(1, 20, 3),
    quoted=True,
    calls=(ToolCall("search", {"query": "gout"}, "no"),),
    context_ids=(4, 5),
)
QUESTION = Question(
    "q",
    "Which dose of allopurinol does one begin with?",
    ("50 mg", "100 mg"),
    "100 mg",
    "doses",
    ("p",),
    {"source": "mine"},
    ("0.1 g",),
    "number",
    (("100 mg", "0.1 g"), ("50 mg",)),
    (50.0, None),
)
WHOLE = Rollout(QUESTION, (5,), (TURN, TURN), StopReason.ANSWERED, 3, 1, 0.5, True, "late")


def test_a_waiting_rollout_is_read_as_it_was_written(tmp_path: Path) -> None:
    for record in (WHOLE, TURN, QUESTION):
        left = [each.name for each in fields(record) if getattr(record, each.name) == each.default]
        assert not left, "each field has a value of its own"
    bare = Rollout(Question("r", "Why?"), (5,), (Turn((9,), (-1.0,), ""),), StopReason.MAX_TURNS)
    write_rollouts(tmp_path / "000001.rank0.jsonl", [WHOLE, bare])
    assert read_rollouts(tmp_path / "000001.rank0.jsonl") == [WHOLE, bare]
    assert len((tmp_path / "000001.rank0.jsonl").read_text(encoding="utf-8").splitlines()) == 2


def test_fields_that_an_earlier_version_wrote_are_ignored(tmp_path: Path) -> None:
    write_rollouts(tmp_path / "000001.rank0.jsonl", [WHOLE])
    row = json.loads((tmp_path / "000001.rank0.jsonl").read_text(encoding="utf-8"))
    row["turns"][0]["routing"] = {"data": "+vv8/f7/", "layers": 3, "top_k": 2, "dtype": "uint8"}
    (tmp_path / "000002.rank0.jsonl").write_text(json.dumps(row) + "\n", encoding="utf-8")
    assert read_rollouts(tmp_path / "000002.rank0.jsonl") == [WHOLE]
