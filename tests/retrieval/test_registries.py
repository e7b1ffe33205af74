"""Records of sources in JSON: Europe PMC, ClinicalTrials.gov, openFDA, BioC; in answers, lines and single files."""

from __future__ import annotations

import gzip
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from medagent.retrieval.bibliography import Bibliography
from medagent.retrieval.chunking import Document
from medagent.retrieval.readers import LeftOut, Withdrawn, read_documents
from tests.retrieval.support import read, texts

ARTICLE: dict[str, Any] = {
    "id": "90",
    "source": "MED",
    "pmid": "90",
    "pmcid": "PMC7",
    "doi": "10.9999/Demo.1",
    "title": "Demovaxin &amp; <i>zoster</i>.",
    "authorString": "Muster A, Beispiel B.",
    "journalInfo": {"journal": {"title": "J Ex"}},
    "pubYear": "2023",
    "firstPublicationDate": "2022-12-30",
    "abstractText": "<h4>Background</h4>Demovaxin halves zoster at 10<sup>9</sup>/L.",
    "pubTypeList": {"pubType": ["Review", "Journal Article"]},
    "keywordList": {"keyword": ["zoster"]},
    "language": "eng",
}
TRIAL: dict[str, Any] = {
    "protocolSection": {
        "identificationModule": {"nctId": "NCT00000099", "briefTitle": "Demoxetine in gout"},
        "statusModule": {
            "overallStatus": "TERMINATED",
            "whyStopped": "Harm",
            "studyFirstPostDateStruct": {"date": "2019-01-02"},
            "lastUpdatePostDateStruct": {"date": "2024-05-06"},
        },
        "sponsorCollaboratorsModule": {"leadSponsor": {"name": "Demo Pharma"}},
        "descriptionModule": {"briefSummary": "We give it.", "detailedDescription": "For long."},
        "conditionsModule": {"conditions": ["Gout", "Pain"]},
        "designModule": {"phases": ["PHASE2"], "enrollmentInfo": {"count": 40}},
        "armsInterventionsModule": {
            "armGroups": [{"label": "High", "description": "5 mg daily"}],
            "interventions": [{"type": "DRUG", "name": "Demoxetine", "armGroupLabels": ["High", "Low"]}],
        },
        "outcomesModule": {"primaryOutcomes": [{"measure": "Pain", "timeFrame": "12 weeks"}]},
        "eligibilityModule": {
            "eligibilityCriteria": "Inclusion:\n\n* Age \\>= 18, at 10\\^9/L, GFR \\< 60",
            "minimumAge": "18 Years",
        },
    },
    "resultsSection": {
        "outcomeMeasuresModule": {
            "outcomeMeasures": [
                {
                    "title": "Pain",
                    "timeFrame": "12 weeks",
                    "unitOfMeasure": "points",
                    "groups": [{"id": "OG0", "title": "High"}, {"id": "OG1", "title": "Placebo"}],
                    "analyses": [{"pValue": "0.03", "paramType": "Hazard ratio", "paramValue": "0.8"}],
                    "classes": [
                        {
                            "title": "Week 4",
                            "categories": [
                                {
                                    "measurements": [
                                        {"groupId": "OG0", "value": "2.5", "spread": "0.3"},
                                        {"groupId": "OG1", "value": "4", "lowerLimit": "3", "upperLimit": "5"},
                                    ]
                                }
                            ],
                        }
                    ],
                }
            ]
        },
        "adverseEventsModule": {
            "eventGroups": [{"id": "EG0", "title": "High"}],
            "seriousEvents": [{"term": "Bleeding", "stats": [{"groupId": "EG0", "numAffected": 2, "numAtRisk": 20}]}],
        },
    },
}
LABEL: dict[str, Any] = {
    "spl_product_data_elements": ["Demo DEMOXETINE"],
    "dosage_and_administration": ["2 DOSAGE Give 5 mg."],
    "dosage_and_administration_table": [
        "<table><tr><th>CrCl</th><th>Dose</th></tr><tr><td>&lt; 30</td><td>1 mg</td></tr></table>"
    ],
    "boxed_warning": ["WARNING: LIVER FAILURE"],
    "set_id": "AB-1",
    "id": "x",
    "effective_time": "20240315",
    "version": "7",
    "openfda": {"brand_name": ["Demo"], "manufacturer_name": ["Demo Pharma"]},
}
BIOC = {
    "source": "PMC",
    "documents": [
        {
            "id": "PMC77",
            "passages": [
                {"infons": {"section_type": "TITLE", "article-id_pmid": "7"}, "text": "On gout"},
                {"infons": {"section_type": "RESULTS", "type": "paragraph"}, "text": "It hurts."},
            ],
        }
    ],
}


def one(tmp_path: Path, row: object) -> Document:
    (document,), skipped = read(tmp_path, "a.json", json.dumps(row))
    assert not skipped
    return document


@pytest.mark.parametrize(
    ("answer", "record", "id_"),
    [
        ({"hitCount": 1, "resultList": {"result": [ARTICLE]}}, ARTICLE, "pmid:90"),
        ({"version": "6", "result": ARTICLE}, ARTICLE, "pmid:90"),
        ({"studies": [TRIAL], "nextPageToken": "x"}, TRIAL, "nct:NCT00000099"),
        ({"meta": {"results": {"skip": 0}}, "results": [LABEL]}, LABEL, "setid:ab-1"),
        (BIOC, BIOC["documents"][0], "pmc:77"),
    ],
)
def test_an_answer_a_record_and_lines_are_read_alike(tmp_path: Path, answer: object, record: object, id_: str) -> None:
    written = (json.dumps(answer), json.dumps([answer]), json.dumps(record), "\ufeff" + json.dumps([record]))
    found = [read(tmp_path, "a.json", content) for content in written]
    found += [read(tmp_path, "a.jsonl", f"{json.dumps(each)}\n" * 2) for each in (answer, record)]
    for (document, *more), skipped in found:
        assert not skipped
        assert document.id == id_
        assert more in ([], [document])
        assert replace(document, source="") == replace(found[0][0][0], source="")


def test_an_article_of_europe_pmc(tmp_path: Path) -> None:
    document = one(tmp_path, [ARTICLE])
    assert (document.title, document.id, document.year) == ("Demovaxin & zoster.", "pmid:90", 2023)
    assert document.aliases == ("pmc:7", "doi:10.9999/demo.1")
    assert texts([document]) == [[("", "Background\nDemovaxin halves zoster at 10^9/L.")]]
    assert document.about == Bibliography(
        doi="10.9999/demo.1",
        pmid="90",
        authors=("Muster A", "Beispiel B"),
        journal="J Ex",
        date="2022-12-30",
        types=("Review", "Journal Article"),
        keywords=("zoster",),
        language="eng",
    )


@pytest.mark.parametrize(
    ("changed", "id_"),
    [
        ({"pmid": None}, "pmid:90"),
        ({"pmid": None, "id": "PMC7", "source": "PMC"}, "pmc:7"),
        ({"pmid": None, "pmcid": None, "source": "AGR", "id": "IND1"}, "doi:10.9999/demo.1"),
        ({"pmid": None, "pmcid": None, "doi": None, "source": "PPR", "id": "PPR5"}, "ppr:PPR5"),
    ],
)
def test_names_of_europe_pmc(tmp_path: Path, changed: dict[str, object], id_: str) -> None:
    assert one(tmp_path, [ARTICLE | changed]).id == id_


@pytest.mark.parametrize(
    "changed",
    [
        {"pubTypeList": {"pubType": ["Retracted Publication"]}},
        {"pubType": "retraction of publication; journal article", "pubTypeList": None},
        {"commentCorrectionList": {"commentCorrection": [{"type": "Retraction in", "id": "91", "source": "MED"}]}},
    ],
)
def test_retractions_in_europe_pmc(tmp_path: Path, changed: dict[str, object]) -> None:
    documents, (out,) = read(tmp_path, "a.json", json.dumps([ARTICLE | changed]))
    assert not documents
    assert isinstance(out, Withdrawn)
    assert out.names == ("pmid:90", "pmc:7", "doi:10.9999/demo.1")


def test_a_trial_with_results(tmp_path: Path) -> None:
    document = one(tmp_path, TRIAL)
    assert (document.title, document.year, document.version) == ("Demoxetine in gout", 2024, "2024-05-06")
    assert document.about.url == "https://clinicaltrials.gov/study/NCT00000099"
    assert document.about.authors == ("Demo Pharma",)
    assert texts([document]) == [
        [
            ("Brief summary", "We give it."),
            ("Status", "overall status: TERMINATED; why stopped: Harm"),
            ("Design", "phases: PHASE2; enrollment info: count: 40"),
            ("Conditions", "Gout, Pain"),
            ("Arms", "label: High; description: 5 mg daily"),
            ("Interventions", "type: DRUG; name: Demoxetine; arm group labels: High, Low"),
            ("Eligibility criteria", "Inclusion:\n\n* Age >= 18, at 10^9/L, GFR < 60"),
            ("Eligibility", "minimum age: 18 Years"),
            ("Primary outcomes", "measure: Pain; time frame: 12 weeks"),
            ("Detailed description", "For long."),
            (
                "Results > Pain",
                "time frame: 12 weeks\nWeek 4; High: 2.5 points (0.3); Placebo: 4 points (3 to 5)\n"
                "p value: 0.03; param type: Hazard ratio; param value: 0.8",
            ),
            ("Results > Serious adverse events", "Bleeding; High: 2 of 20"),
        ]
    ]


def test_a_label_of_openfda(tmp_path: Path) -> None:
    document = one(tmp_path, {"results": [LABEL]})
    assert (document.title, document.id, document.year, document.version) == ("Demo", "setid:ab-1", 2024, "000007")
    assert document.about.url.endswith("?setid=ab-1")
    assert (document.about.journal, document.about.types) == ("DailyMed", ("Drug Label",))
    assert texts([document]) == [
        [
            ("Boxed warning", "WARNING: LIVER FAILURE"),
            ("Spl product data elements", "Demo DEMOXETINE"),
            ("Dosage and administration", "2 DOSAGE Give 5 mg."),
            ("Dosage and administration", "CrCl: < 30; Dose: 1 mg"),
        ]
    ]


def test_other_rows_are_read_as_before(tmp_path: Path) -> None:
    row = {"text": "Words.", "results": [{"a": 1}], "title": "T", "source": "S"}
    document = one(tmp_path, [row])
    assert (document.title, document.source, texts([document])) == ("T", "S", [[("", "Words.")]])
    documents, (skipped,) = read(tmp_path, "b.json", '{"studies": [{"a": 1}]}')
    assert (documents, "no text: wanted one of" in skipped.reason) == ([], True)
    _, (skipped,) = read(tmp_path, "c.json", '{"protocolSection": {}')
    assert "cannot be read" in skipped.reason


def test_a_pmid_or_doi_names_a_row_without_an_id(tmp_path: Path) -> None:
    rows = [{"text": "a", "pmid": 5, "doi": "10.1/X"}, {"text": "b", "doi": "https://doi.org/10.1/Y"}]
    rows += [{"text": "c", "id": "own", "doi": "10.1/z"}, {"text": "d", "pmid": "none"}]
    documents, _ = read(tmp_path, "a.json", json.dumps(rows))
    assert [document.id for document in documents] == ["pmid:5", "doi:10.1/y", "own", ""]
    assert [document.aliases for document in documents] == [("doi:10.1/x",), (), ("doi:10.1/z",), ()]


def test_records_before_damage_are_read(tmp_path: Path) -> None:
    packed = gzip.compress(json.dumps({"resultList": {"result": [ARTICLE] * 2000}}).encode())[:-30]
    documents, (skipped,) = read(tmp_path, "a.json.gz", packed)
    assert documents[0].id == "pmid:90"
    assert "what came before is used" in skipped.reason


def test_a_record_with_a_field_of_another_kind_costs_no_other(tmp_path: Path) -> None:
    broken = {
        "protocolSection": {"armsInterventionsModule": {}},
        "resultsSection": {"adverseEventsModule": {"eventGroups": [7]}},
    }
    nameless = {"abstractText": "x", "pubTypeList": {"pubType": ["Retracted Publication"]}}
    documents, skipped = read(tmp_path, "a.json", json.dumps({"studies": [broken, nameless, TRIAL]}))
    assert [document.id for document in documents] == ["nct:NCT00000099"]
    assert ["is no readable record" in each.reason for each in skipped] == [True, True]


def test_struck_out_text_of_a_record_is_counted(tmp_path: Path) -> None:
    (tmp_path / "a.json").write_text(json.dumps([ARTICLE | {"abstractText": "Give <del>50 mg</del> 5 mg."}]))
    document, left_out = read_documents(tmp_path / "a.json")
    assert texts([document]) == [[("", "Give 5 mg.")]]  # type: ignore[list-item]
    assert left_out == LeftOut("a.json, row 1", "1 struck-out text")
