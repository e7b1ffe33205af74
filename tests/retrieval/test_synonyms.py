"""Terms of one meaning from a user's file: a query with one finds what has another, in one index and in several."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from medagent.cli.main import main
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.index import build_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Passage
from medagent.retrieval.query_match import Synonyms, Term, set_synonyms
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import IndexSettings, SearchSettings

TEXTS = {
    "mi": "Myocardial infarction is treated with aspirin.",
    "stone": "Nephrolithiasis is treated with tamsulosin.",
    "fracture": "A fracture is treated with a plaster.",
    "heart": "The heart pumps blood. An attack of gout hurts.",
}
LINES = "# mine\nheart attack|myocardial infarction\tMI\n\nkidney stones|nephrolithiasis|renal calculi\n"
ASCII = """*NEWRECORD
RECTYPE = D
MH = Myocardial Infarction
PRINT ENTRY = Heart Attack|T047|NON|EQV|UNK (19XX)
ENTRY = Cardiovascular Stroke|T047
UI = D009203

*NEWRECORD
MH = Nephrolithiasis
ENTRY = Kidney Stones|T047
ENTRY = Renal Calculi
"""
XML = """<DescriptorRecordSet><DescriptorRecord><DescriptorName><String>Myocardial Infarction</String></DescriptorName>
<ConceptList><Concept><TermList><Term><String>Heart Attack</String></Term></TermList></Concept></ConceptList>
</DescriptorRecord><DescriptorRecord><DescriptorName><String>Nephrolithiasis</String></DescriptorName><ConceptList>
<Concept><TermList><Term><String>Kidney Stones</String></Term><Term><String>Renal Calculi</String></Term></TermList>
</Concept></ConceptList></DescriptorRecord></DescriptorRecordSet>"""


def built(folder: Path, names: tuple[str, ...] = tuple(TEXTS), floor: float = 0.0) -> Path:
    passages = [Passage.make("", TEXTS[name], id=name) for name in names]
    settings = IndexSettings(search=SearchSettings(dense_weight=0.0, floor=floor))
    build_index(passages, folder, HashedNgramEmbedder(64), settings=settings)
    return folder


def first(retriever: HybridRetriever, query: str) -> list[str]:
    return [hit.passage.id for hit in retriever.search([query], top_k=1)[0]]


@pytest.mark.parametrize(
    ("name", "text"), [("mine.txt", LINES), ("d.bin", ASCII), ("desc.xml", XML), ("d.bin.gz", ASCII)]
)
def test_a_query_finds_what_has_another_term(tmp_path: Path, name: str, text: str, capsys) -> None:
    index, file = built(tmp_path / "index"), tmp_path / name
    file.write_bytes(gzip.compress(text.encode()) if name.endswith(".gz") else text.encode())
    before = HybridRetriever(str(index))
    assert first(before, "heart attack treatment") == ["heart"]
    assert first(before, "renal calculi") == []
    before.close()
    assert main(["index", "synonyms", str(index), str(file)]) == 0
    assert "2 groups of terms" in capsys.readouterr().out
    after = HybridRetriever(str(index))
    assert first(after, "heart attack treatment") == ["mi"]
    assert first(after, "Kidney stone") == ["stone"], "the analyser stems terms too"
    assert first(after, "renal calculi") == ["stone"]
    assert first(after, "the heart pumps") == ["heart"], "a part of a term is none"
    after.close()


def synonyms(*groups: tuple[str, ...]) -> Synonyms:
    return Synonyms([[Term(tuple(term.split())) for term in group] for group in groups])


def test_the_longest_term_counts_and_each_place_by_itself() -> None:
    known = synonyms(("heart attack", "mi"), ("heart", "cardiac"), ("gout", "podagra"))
    found = known.variants(["heart", "attack", "gout"], "")
    assert found == [["heart", "attack", "gout"], ["mi", "gout"], ["heart", "attack", "podagra"]]
    assert known.variants(["the", "heart"], "") == [["the", "heart"], ["the", "cardiac"]]
    assert synonyms().variants([], "") == [[]]


def test_the_ways_to_search_are_bounded() -> None:
    many = synonyms(tuple(f"term{i}" for i in range(20)), ("gout", "podagra"))
    assert len(many.variants(["term1"], "")) == 9
    assert many.variants(["gout"] * 500, "") == [["gout"] * 500, ["podagra", *["gout"] * 499]]
    assert len(synonyms(*((f"a{i}", f"b{i}") for i in range(99))).variants([f"a{i}" for i in range(99)], "")) == 32
    permuted = synonyms(("myocardial infarction", "infarction myocardial", "mi"))
    assert permuted.variants(["myocardial", "infarction"], "") == [["myocardial", "infarction"], ["mi"]]


def test_abbreviations_count_in_capitals_only(tmp_path: Path) -> None:
    index, file = built(tmp_path / "index"), tmp_path / "mine.txt"
    file.write_text("ALL|acute lymphoblastic leukemia\nWHO|World Health Organization\nMI|myocardial infarction\n")
    assert set_synonyms(index, file) == (3, 0)
    known = HybridRetriever(str(index)).words
    assert known.searched("are all vaccines safe", near_words=False) == [["all", "vaccin", "safe"]]
    assert ["acut", "lymphoblast", "leukemia", "treatment"] in known.searched("ALL treatment", near_words=False)
    assert ["guidelin", "world", "health", "organiz"] in known.searched("guidelines of WHO", near_words=False)


def test_what_mesh_holds_beside_terms_of_one_meaning_is_left_out(tmp_path: Path) -> None:
    xml = tmp_path / "desc.xml"
    xml.write_text(
        "<DescriptorRecordSet><DescriptorRecord><DescriptorName><String>Calcimycin</String></DescriptorName>"
        "<AllowableQualifiersList><AllowableQualifier><QualifierReferredTo><QualifierName><String>blood</String>"
        "</QualifierName></QualifierReferredTo></AllowableQualifier></AllowableQualifiersList>"
        "<PharmacologicalActionList><PharmacologicalAction><DescriptorReferredTo><DescriptorName>"
        "<String>Anti-Bacterial Agents</String></DescriptorName></DescriptorReferredTo></PharmacologicalAction>"
        '</PharmacologicalActionList><ConceptList><Concept PreferredConceptYN="Y"><TermList><Term>'
        "<String>Calcimycin</String></Term><Term><String>A-23187</String></Term></TermList></Concept>"
        '<Concept PreferredConceptYN="N"><TermList><Term><String>Other Substance</String></Term></TermList></Concept>'
        "</ConceptList></DescriptorRecord></DescriptorRecordSet>"
    )
    index = built(tmp_path / "index")
    assert set_synonyms(index, xml)[0] == 1
    known = HybridRetriever(str(index)).words
    assert len(known.searched("calcimycin", near_words=False)) == 2
    for other in ("blood transfusion", "anti-bacterial agents", "other substance"):
        assert len(known.searched(other, near_words=False)) == 1
    lines = "MH = Neoplasms\nENTRY = Cancer|T191|NON|EQV\nENTRY = Benign Neoplasm|T191|NON|NRW\n"
    (tmp_path / "d.bin").write_text(f"*NEWRECORD\n{lines}")
    plain = built(tmp_path / "other")
    set_synonyms(plain, tmp_path / "d.bin")
    known = HybridRetriever(str(plain)).words
    assert len(known.searched("cancer", near_words=False)) == 2
    assert len(known.searched("benign neoplasm", near_words=False)) == 2, "neoplasm is a term itself"
    assert ["cancer"] not in known.searched("benign neoplasm", near_words=False)


def test_the_version_changes_with_the_terms_and_damage_is_told(tmp_path: Path) -> None:
    index, file = built(tmp_path / "index"), tmp_path / "mine.txt"
    before = Manifest.read(index).version
    file.write_text("gout|podagra\n")
    set_synonyms(index, file)
    after = Manifest.read(index).version
    assert after != before
    file.write_bytes("goître|goitre\n".encode("latin-1"))
    with pytest.raises(RetrievalError, match="no UTF-8 text"):
        set_synonyms(index, file)
    assert Manifest.read(index).version == after
    (index / "synonyms.json").write_text("[[[")
    with pytest.raises(RetrievalError, match="medagent index synonyms"):
        HybridRetriever(str(index))


def test_a_synonym_covers_the_query(tmp_path: Path) -> None:
    index, file = built(tmp_path / "index", floor=0.9), tmp_path / "mine.txt"
    file.write_text("renal calculi|nephrolithiasis")
    retriever = HybridRetriever(str(index))
    assert first(retriever, "renal calculi") == []
    with pytest.raises(RetrievalError, match="open"):
        set_synonyms(index, file)
    retriever.close()
    set_synonyms(index, file)
    assert first(HybridRetriever(str(index)), "renal calculi") == ["stone"]


def test_a_file_without_synonyms_is_refused(tmp_path: Path) -> None:
    index = built(tmp_path / "index")
    for name, text in (("empty.txt", ""), ("one.txt", "gout\n"), ("broken.xml", "<a>"), ("no.gz", "x")):
        (tmp_path / name).write_text(text)
        with pytest.raises(RetrievalError, match=name):
            set_synonyms(index, tmp_path / name)
    with pytest.raises(RetrievalError, match="cannot be read"):
        set_synonyms(index, tmp_path / "absent.txt")
