"""Dialogues as they are found in files: read alike however they are written, or refused with the line's number."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest
from tokenizers import AddedToken

from medagent.errors import ConfigError
from medagent.protocol import TagProtocol
from medagent.training.agent_data import AgentSettings
from medagent.training.sft.data import LeftOutReason, encoded
from medagent.training.sft.dialogues import GivenDialogues
from medagent.types import Limits, Rollout

SETTINGS = AgentSettings(TagProtocol(instructions=""), Limits(4, 400, 400, 3000), top_k=3)
SEARCH = {"text": "<search>q</search>", "passages": [{"text": "one"}, {"text": "two"}]}
RIGHT = {"text": "<answer>(B) x [1]</answer>"}
ROW = {"question": "Q?", "options": {"A": "a thing", "B": "Another"}, "gold": "B", "turns": [SEARCH, RIGHT]}


def read(folder: Path, *rows: dict[str, Any], raw: str = "") -> list[Rollout]:
    path = folder / "own.jsonl"
    path.write_text(raw or "".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    return GivenDialogues(str(path)).read(folder, SETTINGS.protocol)


def outcome(tokenizer, folder: Path, *turns: dict[str, Any], **row: Any) -> Rollout | LeftOutReason:
    """What becomes of a dialogue that is read."""
    (rollout,) = read(folder, {**ROW, "gold": "", **row, "turns": list(turns)})
    kept, left_out = encoded([rollout], SETTINGS, tokenizer)
    return kept[0] if kept else next(iter(left_out))


@pytest.mark.parametrize(
    "turn",
    [
        "<think>maybe <search>z</search> no</think><search>q</search>",
        "<think>I close with </search> here</think><search>q</search>",
        "<think>as in <answer>z</answer></think><search>q</search>",
    ],
)
def test_a_turn_that_ends_inside_its_thought_is_not_imitated(turn: str, tokenizer, tmp_path: Path) -> None:
    """The run ends it at the first end tag, and what stands before that is no search."""
    assert outcome(tokenizer, tmp_path, {**SEARCH, "text": turn}, RIGHT) is LeftOutReason.UNREADABLE


def test_an_answer_is_graded_as_the_run_reads_it(tokenizer, tmp_path: Path) -> None:
    inside = {"text": "<think>maybe <answer>(A)</answer>? no</think><answer>(B) x [1]</answer>"}
    assert read(tmp_path, {**ROW, "turns": [SEARCH, inside]}) == []
    assert outcome(tokenizer, tmp_path, SEARCH, inside) is LeftOutReason.NO_ANSWER
    for behind in (" hope it helps", "</s>", "<|endoftext|>", "\n\n", "<answer>(A)</answer>"):
        (rollout,) = read(tmp_path, {**ROW, "turns": [SEARCH, {"text": RIGHT["text"] + behind}]})
        ((kept,), _) = encoded([rollout], SETTINGS, tokenizer)
        assert kept.turns[-1].text == RIGHT["text"], "what stands behind the end is not taught"


@pytest.mark.parametrize("options", [{"B": "Another", "A": "a thing"}, ["a thing", "Another"]])
def test_options_belong_to_their_letters(options: object, tmp_path: Path) -> None:
    (rollout,) = read(tmp_path, {**ROW, "options": options})
    assert (rollout.question.options, rollout.question.answer) == (("a thing", "Another"), "B")


@pytest.mark.parametrize("gold", ["B", "b", "Another", " another ", ["B"]])
def test_gold_may_be_named_in_many_ways(gold: object, tmp_path: Path) -> None:
    (rollout,) = read(tmp_path, {**ROW, "gold": gold})
    assert rollout.question.answer == "B"
    assert read(tmp_path, {**ROW, "gold": gold, "turns": [SEARCH, {"text": "<answer>(A) [1]</answer>"}]}) == []


@pytest.mark.parametrize(
    ("verdict", "kept"), [("correct", 1), ("Correct", 1), (True, 1), (False, 0), (None, 0), ("", 0), ("Wrong", 0)]
)
def test_verdicts_may_be_written_in_many_ways(verdict: object, kept: int, tmp_path: Path) -> None:
    assert len(read(tmp_path, {**ROW, "verdict": verdict})) == kept


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"verdict": "fine"}, "verdict: found 'fine', wanted one of correct, wrong"),
        ({"options": {"A": "a", "C": "c"}}, "wanted an object whose keys are the letters A, B"),
        ({"options": {"1": "a", "2": "b"}}, "wanted an object whose keys are the letters A, B"),
        ({"options": dict.fromkeys("ABCDEFGHIJKL", "x")}, "wanted an object whose keys are the letters A, B"),
        ({"gold": "C"}, "gold: found 'C', wanted one of the letters A, B, or the text of one option"),
        ({"gold": 1}, "gold: found 1, wanted one of the letters"),
        ({"options": {"A": "same", "B": "same"}, "gold": "same"}, "gold: found 'same'"),
        ({"question": {"text": "Q"}}, "question: found .* wanted a text"),
        ({"turns": ["<answer>x</answer>"]}, "a turn: found .*, wanted an object"),
        ({"turns": [{"text": None}]}, "text: found None, wanted a text"),
        ({"turns": [{**SEARCH, "passages": ["p"]}, RIGHT]}, "a passage: found 'p', wanted an object"),
        ({"turns": [{**SEARCH, "passages": [{"content": "p"}]}, RIGHT]}, "text: found None, wanted a text"),
        ({"question": "half \ud800"}, "surrogates not allowed"),
    ],
)
def test_what_cannot_be_read_is_refused_with_its_line(change: dict[str, Any], words: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=f"line 2: .*{words}"):
        read(tmp_path, ROW, {**ROW, **change})


def test_harmless_differences_of_files_are_none(tokenizer, tmp_path: Path) -> None:
    line = json.dumps(ROW)
    for raw in (f"\ufeff{line}\n", f"{line}\r\n\r\n", f"\n{line}\n\n"):
        assert len(read(tmp_path, raw=raw)) == 1
    odd = [{"text": "p", "title": None, "source": None}, {"text": "r", "title": 5, "id": 7}]
    (rollout,) = read(tmp_path, {**ROW, "turns": [{**SEARCH, "passages": odd}, {**RIGHT, "passages": None}]})
    assert [hit.passage.title for hit in rollout.turns[0].hits] == ["", "5"]
    assert encoded([rollout], SETTINGS, tokenizer)[1] == {}


@pytest.mark.parametrize(
    "cites", ["[1 and 9]", "[passage 9]", "【9】", "［9］", "[^9]", "[Sources 1, 9]", "[1 & 9]", "[see ref. 9]"]
)
def test_a_citation_in_any_brackets_must_name_what_is_shown(cites: str, tokenizer, tmp_path: Path) -> None:
    assert outcome(tokenizer, tmp_path, SEARCH, {"text": f"<answer>(B) x {cites}</answer>"}) is LeftOutReason.CITATION
    shown = cites.replace("9", "2")
    assert isinstance(outcome(tokenizer, tmp_path, SEARCH, {"text": f"<answer>(B) x {shown}</answer>"}), Rollout)


@pytest.mark.parametrize("mark", ["<|im_start|>", "<start_of_turn>", "[INST]", "<|end|>"])
@pytest.mark.parametrize("special", [True, False])
def test_a_control_token_is_not_imitated_whatever_it_is_called(
    mark: str, special: bool, tokenizer, tmp_path: Path
) -> None:
    own = copy.deepcopy(tokenizer)
    own.add_tokens(
        [AddedToken(mark, special=special), AddedToken("allopurinol", special=False)], special_tokens=special
    )
    turn = {"text": f"<think>t {mark} user</think><answer>(B) x [1]</answer>"}
    assert outcome(own, tmp_path, SEARCH, turn) is LeftOutReason.CONTROL_TOKEN
    if not special:
        word = {"text": "<answer>(B) allopurinol [1]</answer>"}
        assert isinstance(outcome(own, tmp_path, SEARCH, word), Rollout), "an added word is a word"


def test_few_searches_and_wrong_verdicts_are_left_out_unless_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    rows = [{**ROW, "turns": [SEARCH] * searches + [RIGHT]} for searches in range(1, 4)]
    rows.append({**ROW, "verdict": "wrong"})
    path.write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    for settings, searches in (({}, [1, 2, 3]), ({"min_searches": 2}, [2, 3])):
        found = GivenDialogues(str(path), **settings).read(tmp_path, SETTINGS.protocol)
        assert [rollout.num_searches for rollout in found] == searches
    with pytest.raises(ConfigError, match="no such file"):
        GivenDialogues(str(tmp_path / "none"))
