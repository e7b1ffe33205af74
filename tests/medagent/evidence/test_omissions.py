"""What an answer leaves out: warnings, limits and recommendations on its subject, and none on another."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from medagent.evidence.omissions import omitted
from medagent.evidence.synonyms import SynonymTable
from medagent.retrieval.passages import Passage

CASES: list[dict[str, Any]] = yaml.safe_load(Path(__file__).with_name("omissions.yaml").read_text(encoding="utf-8"))
TABLE = SynonymTable.load()


@pytest.mark.parametrize("case", CASES, ids=lambda case: case["question"].replace(" ", "_"))
def test_what_an_answer_leaves_out_is_shown_and_nothing_of_another_subject(case: dict[str, Any]) -> None:
    passages = [Passage.make(title, text, section=section) for title, section, text in case["passages"]]
    found = [quote.text for quote in omitted(case["question"], case["answer"], passages, synonyms=TABLE)]
    assert [text for text in case["also"] if text not in " ".join(found)] == []
    assert [text for text in case["never"] if text in " ".join(found)] == []
    assert len(found) == len(case["also"]), found
