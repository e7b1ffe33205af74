"""Kinds of passages and printed grades of evidence: found by strict rules, filtered by, and shown."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from medagent.cli.main import main
from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.chunking import Document, Section, chunk_document, kind_and_grade, kind_line
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.filters import Filter
from medagent.retrieval.index import build_index
from medagent.retrieval.passages import Passage
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import Chunking
from medagent.serving.openai_form import source_line
from medagent.serving.schemas import SHAPES
from tests.retrieval.support import SMALL, read


def found(text: str, heading: str = "", section_kind: str = "") -> tuple[str, str]:
    return kind_and_grade(section_kind, heading, text, rows=False)


@pytest.mark.parametrize(
    ("text", "grade"),
    [
        ("We recommend demoxetine for adults (Grade 1A).", "1A"),
        ("We recommend demoxetine for adults. (Grade 1A)", "1A"),
        ("We suggest not giving demoxetine to children (2C).", "2C"),
        ("Demoxetine should be offered to adults [Grade B].", "B"),
        ("The USPSTF recommends screening adults (B recommendation).", "B"),
        ("We suggest rest (conditional recommendation, very low certainty of evidence).", None),
        ("The panel recommends demoxetine (Strong recommendation; moderate-quality evidence).", None),
        ("Demoxetine is recommended in adults (Class I, Level of Evidence: B-R).", None),
        ("Demoxetine should not be given (Class III: Harm; Level of Evidence: C-LD).", None),
        ("Rest is recommended (Class IIa, Level C).", None),
        ("Offer demoxetine to adults (Level 2b).", "Level 2b"),
        ("The group recommends rest.\nWeak recommendation, low confidence.", "Weak recommendation, low confidence"),
        ("Rest is recommended. Grade 1C.", "1C"),
        ("Clinicians should offer rest. Recommendation grade: B", "B"),
        ("COR: 1; LOE: A; Recommendation: Give demoxetine to adults.", "COR: 1, LOE: A"),
        ("Recommendation: Give demoxetine; Grade: 1B", "1B"),
        ("We recommend A (Grade 1A). We suggest B (Grade 2B).", "1A; 2B"),
        (
            "We suggest B (2B). We recommend A. Strong recommendation, low certainty.",
            "2B; Strong recommendation, low certainty",
        ),
    ],
)
def test_a_recommendation_is_known_by_the_grade_behind_it(text: str, grade: str | None) -> None:
    kind, said = found(text)
    printed = text.partition("(")[2].rstrip(").").replace(";", ",")
    assert (kind, said) == ("recommendation", printed if grade is None else grade)


@pytest.mark.parametrize(
    ("heading", "text"),
    [
        ("Recommendations", "1.1.1 Offer demoxetine to adults."),
        ("3 Key recommendations > Adults", "Demoxetine should be stopped slowly."),
        ("Recommendation 4", "We suggest rest."),
        ("Recommendations for adults", "Do not give demoxetine at night."),
        ("", "Recommendation 3.1: Avoid demoxetine in pregnancy."),
    ],
)
def test_a_recommendation_is_known_by_its_heading_and_what_it_advises(heading: str, text: str) -> None:
    assert found(text, heading) == ("recommendation", "")


@pytest.mark.parametrize(
    ("heading", "text"),
    [
        ("Recommendations", "The committee read five trials of demoxetine."),
        ("Recommendations", "Further research should compare both doses."),
        ("Recommendations for research", "Trials should compare both doses."),
        ("Recommendations > Rationale and impact", "Demoxetine should be cheap."),
        ("Conclusions and recommendations", "Demoxetine should be studied."),
        ("Results", "Grade 3 events and Grade 1A tumours (grade 2B) were rare; lymph nodes (level 2b) were removed."),
        ("Results", "Patients in NYHA class II, level 3 hospitals and a class I antiarrhythmic."),
        ("Results", "Rest is recommended. Grade 3 events and class II failure were rare."),
        ("Results", "These findings suggest a benefit (2A)."),
        ("Methods", "We graded recommendations by GRADE and the level of evidence."),
        ("Discussion", "It was recommended until 2019 [2019]."),
    ],
)
def test_talk_of_recommendations_and_other_grades_is_narrative(heading: str, text: str) -> None:
    assert found(text, heading) == ("narrative", "")


def test_a_level_of_evidence_alone_makes_no_recommendation() -> None:
    assert found("Therapeutic trial. Level of evidence: 2b.") == ("narrative", "Level of evidence: 2b")
    assert found("III", "LEVEL OF EVIDENCE") == ("narrative", "LEVEL OF EVIDENCE: III")


def test_boxed_warnings_are_known_by_their_heading_or_the_reader() -> None:
    text = "Demoxetine should not be given with demazine (Grade 1A)."
    for heading in ("BOXED WARNING", "Boxed warning > Liver", "WARNING: LIVER FAILURE", "Black box warning"):
        assert found(text, heading) == ("boxed warning", "")
    assert found(text, "", "boxed warning") == ("boxed warning", "")
    for heading in ("Warning: see below", "WARNINGS AND PRECAUTIONS", "Unboxed warnings"):
        assert found("Liver failure occurred.", heading) == ("narrative", "")


LABEL = """<document xmlns="urn:hl7-org:v3"><setId root="AB"/><title>Demoxetine</title><versionNumber value="2"/>
<component><structuredBody><component><section><code code="34066-1" displayName="BOXED WARNING SECTION"/>
<title>Warning: liver</title><text><paragraph>It harms the liver.</paragraph></text></section></component>
<component><section><code code="1"/><title>Uses</title><text><paragraph>Pain.</paragraph></text></section></component>
</structuredBody></component></document>"""


def test_the_boxed_warning_of_a_label_is_known_by_its_code(tmp_path: Path) -> None:
    (document,), _ = read(tmp_path, "label.xml", LABEL)
    assert [(section.heading, section.kind) for section in document.sections] == [
        ("Warning: liver", "boxed warning"),
        ("Uses", ""),
    ]


def chunked(text: str, max_tokens: int = 0, kind: str = "") -> list[tuple[str, str]]:
    document = Document("Doses", (Section("", text, kind),), id="a")
    passages = chunk_document(document, Chunking(max_tokens, 0), lambda texts: [len(text.split()) for text in texts])
    return [(passage.text, passage.about.kind) for passage in passages]


def test_tables_are_known_by_their_rows_and_cut_apart_from_prose() -> None:
    rows = [f"Drug: d{n}; Adults: {n} mg; Children: none" for n in range(1, 4)]
    assert chunked("\n".join(rows)) == [("\n".join(rows), "table")]
    prose = "Demoxetine is given once. It is stopped slowly."
    assert chunked("\n".join([prose, "By weight:", *rows]), 20) == [
        (prose, "narrative"),
        (f"By weight:\n{rows[0]}\n{rows[1]}", "table"),
        (rows[2], "table"),
    ]
    assert chunked("Dose: 5 mg; route: by mouth") == [("Dose: 5 mg; route: by mouth", "narrative")]
    assert chunked("Aspirin; 300 mg", kind="table") == [("Aspirin; 300 mg", "table")]


def test_kinds_and_grades_are_told_in_one_line() -> None:
    assert kind_line("recommendation", "1A") == "recommendation, grade 1A"
    assert kind_line("recommendation", "1A; 2B") == "recommendation, grade 1A; 2B"
    assert kind_line("narrative", "Level of evidence: 2b") == "Level of evidence: 2b"
    assert kind_line("boxed warning", "") == "boxed warning"
    assert kind_line("", "") == ""


GUIDE = """# Guide

## Recommendations

We recommend demoxetine for adults (Grade 1A).

## Boxed warning

Demoxetine harms the liver.

## Choice

We suggest demoxetine (Strong recommendation, moderate-quality evidence). It is Class IIa, Level of Evidence: B-R.

## Course

Demoxetine works within days.
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> Path:
    corpus, folder = tmp_path_factory.mktemp("corpus"), tmp_path_factory.mktemp("kinds") / "index"
    (corpus / "guide.md").write_text(GUIDE)
    (corpus / "rows.jsonl").write_text(
        '{"id": "told", "text": "Demoxetine, by its maker.", "kind": "Boxed-Warning"}\n'
        '{"id": "other", "text": "Demoxetine at school.", "kind": "web page", "grade": "1A"}\n'
    )
    build_index(str(corpus), folder, SMALL)
    return folder


@pytest.mark.parametrize(
    ("where", "sections"),
    [
        ("kind=recommendation grade=1a", {"Recommendations"}),
        ('kind="boxed warning"', {"Boxed warning", "told"}),
        ("kind=boxed-warning,table document=told", {"told"}),
        ("kind=narrative", {"Course", "other"}),
        ("kind!=narrative kind!=recommendation", {"Boxed warning", "told"}),
        ("grade=*strong*", {"Choice"}),
        ("grade=B-R", {"Choice"}),
        ("grade=1A,2B", {"Recommendations"}),
        ("grade=A", set()),
    ],
)
def test_kind_and_grade_filter(index: Path, where: str, sections: set[str]) -> None:
    retriever = HybridRetriever(str(index), SMALL)
    hits = retriever.search_where(["demoxetine"], top_k=9, where=Filter.parse(where))[0]
    retriever.close()
    assert {hit.passage.section or hit.passage.id for hit in hits} == sections


def test_a_kind_that_does_not_exist_is_refused() -> None:
    with pytest.raises(RetrievalError, match="kind is compared with 'recomendation', wanted recommendation, boxed"):
        Filter.parse("kind=recomendation")


def test_search_and_answers_show_kind_and_grade(index: Path, capsys: pytest.CaptureFixture[str]) -> None:
    asked = ["search", "demoxetine for adults", "--index", str(index), "--where", "grade=1A"]
    assert main(asked) == 0
    assert "guide.md, recommendation, grade 1A" in " ".join(capsys.readouterr().out.split())
    assert main([*asked, "--json"]) == 0
    row = json.loads(capsys.readouterr().out)
    assert (row["kind"], row["grade"]) == ("recommendation", "1A")
    del row["score"]
    assert source_line(row) == "Guide, Recommendations, guide.md, recommendation, grade 1A"
    jsonschema.validate(row, SHAPES["passage"])
    assert Passage.from_json(row).about == Bibliography(kind="recommendation", grade="1A")
