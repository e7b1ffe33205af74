"""Names of one meaning: the packaged table and an operator's."""

from __future__ import annotations

from pathlib import Path

import pytest

from medagent.errors import ConfigError
from medagent.evidence.subject import match_subject
from medagent.evidence.synonyms import SynonymTable
from medagent.retrieval.passages import Passage
from medagent.retrieval.query_match import groups_of

SAME = """
heart attack|Myocardial infarction
HTN|High blood pressure
myeloma|multiple myeloma
plasma cell myeloma|myeloma
MS|multiple sclerosis
RA|Rheumatoid arthritis
TB|tuberculosis
AF|atrial fibrillation
pertussis|whooping cough
Lou Gehrig's disease|amyotrophic lateral sclerosis
paracetamol overdose|acetaminophen overdose
diabetes|Diabetes mellitus
typhoid|typhoid fever"""


@pytest.mark.parametrize("row", SAME.strip().split("\n"))
def test_a_synonym_is_the_same_subject(row: str) -> None:
    asked, title = row.split("|")
    assert match_subject(f"How is {asked} treated?", Passage.make(title, "Rest.")).kind == "same"


def test_an_abbreviation_needs_its_capitals_and_names_their_borders() -> None:
    table = SynonymTable.load()
    assert table.plain("ms Smith, ALS-like, als") == "ms Smith, ALS-like, als"
    assert table.plain("MS or Parkinson\u2019s disease") == "Multiple sclerosis or Parkinson disease"


def test_no_name_stands_in_two_groups_and_the_first_stands_for_itself() -> None:
    table = SynonymTable.load()
    names = [name.lower() for group in table.groups for name in group]
    assert len(names) == len(set(names))
    assert [group[0] for group in table.groups if table.plain(group[0]) != group[0]] == []


def test_an_operators_file_comes_before_the_packaged_one(tmp_path: Path) -> None:
    file = tmp_path / "own.txt"
    file.write_text("# ours\ntyphus exanthematicus|jail fever\nmitral stenosis|MS\n", encoding="utf-8")
    table = SynonymTable.load(file)
    assert table.plain("jail fever, MS, TB") == "typhus exanthematicus, Mitral stenosis, Tuberculosis"
    file.write_text("heart attack\n", encoding="utf-8")
    SynonymTable.load.cache_clear()
    with pytest.raises(ConfigError, match="found the line 'heart attack', wanted"):
        SynonymTable.load(file)


def test_the_packaged_table_has_the_format_of_an_indexs_synonyms() -> None:
    packaged = Path(__file__).parents[3] / "medagent" / "evidence" / "synonyms.txt"
    assert [tuple(group) for group in groups_of(packaged)] == list(SynonymTable.load().groups)
