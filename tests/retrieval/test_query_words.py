"""The words of a query: variants of spelling, the nearest known word, and a floor below which nothing is shown."""

from __future__ import annotations

import re
from math import log
from pathlib import Path

import httpx
import pytest

from medagent.cli.main import main
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.index import build_index
from medagent.retrieval.normalization import add_number_words, strip_accents, to_american
from medagent.retrieval.passages import Passage
from medagent.retrieval.query_match import QueryWords
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import IndexSettings, SearchSettings
from tests.retrieval.server import Serving

TEXTS = {
    "behcet": "Behçet's disease is treated with colchicine.",
    "gastroparesis": "Gastroparesis delays the emptying of the stomach.",
    "edema": "Edema of the leg has many causes.",
    "gout": "Gout is treated with allopurinol.",
    "type2": "Type 2 diabetes is treated with metformin.",
}
BM25_ALONE = SearchSettings(dense_weight=0.0)


def built(folder: Path, settings: SearchSettings = BM25_ALONE) -> HybridRetriever:
    passages = [Passage.make("", text, id=name) for name, text in TEXTS.items()]
    build_index(passages, folder, HashedNgramEmbedder(64), settings=IndexSettings(search=settings))
    return HybridRetriever(str(folder))


SPELLINGS = """oedema edema, haemophilia hemophilia, leukaemia leukemia, anaemic anemic, ischaemia ischemia,
paediatrics pediatrics, oesophageal esophageal, diarrhoea diarrhea, dyspnoea dyspnea, coeliac celiac, fibre fiber,
anaesthesia anesthesia, oestrogen estrogen, goitre goiter, sulphonamide sulfonamide, hospitalised hospitalized,
immunisation immunization, caesarean cesarean, aetiology etiology, gynaecology gynecology, angiooedema angioedema,
gastro-oesophageal gastroesophageal, angio-oedema angioedema, phyto-oestrogens phytoestrogen, manoeuvre maneuver,
tracheo-oesophageal tracheoesophageal, non-steroidal nonsteroidal, seborrhoeic seborrheic, apnoeic apneic,
paraesthesia paresthesia, leucocytes leukocyte, leucopenia leukopenia, leukaemoid leukemoid, ileocaecal ileocecal,
homoeopathy homeopathy, fibreoptic fiberoptic, anaesthetised anesthetized, traumatised traumatized, practised practiced,
Behçet Behcet, SJÖGREN sjogren, Ménière’s Meniere's, bœuf boeuf, BRCA1/2 brca1, il6 IL-6, infections infection,
ﬁbrosis fibrosis, foetus fetus"""
NAMES = [("TNFα", "TNF alpha"), ("IFN-γ", "IFN gamma"), ("α1-antitrypsin", "alpha-1 antitrypsin"), ("5-FU", "5 FU")]
NAMES += [("β-thalassaemia", "beta thalassemia"), ("5 µg", "5 mcg"), ("IL-6", "il 6"), ("Hepatitis A", "hepatitis a")]
NAMES += [("Crohn's disease", "crohn disease"), ("COVID‑19", "covid 19"), ("5-HT3 receptors", "5 HT3 receptor")]


def test_variants_of_spelling_are_one_word() -> None:
    analyser = Analyser()
    for one, other in [*(pair.split() for pair in SPELLINGS.split(",")), *NAMES]:
        assert set(analyser.tokens(other)) <= set(analyser.tokens(one)), (one, other)
    assert analyser.tokens("νόσος") == ["νοσος"], "words of the Greek language are left alone"


def test_other_words_keep_their_spelling() -> None:
    words = "disease exercise aerobic michael israel hour four pour acre genre rise poem shoe phoenix does goes raise"
    for word in f"{words} noise haemus analyses premise paella".split():
        assert to_american(word) == word
    assert strip_accents("plain") == "plain"


def test_numerals_of_names_meet() -> None:
    pairs = {"type II": "type 2", "Type-II": "TYPE 2", "type\nII": "type  2", "types I and II": "types 1 and 2"}
    pairs |= {"type II/III": "type 2 or 3", "factor VIII": "Factor 8", "stage IV": "stage 4"}
    for one, other in (pairs | {"angiotensin II": "angiotensin 2"}).items():
        words, others = (
            {word for word in Analyser().tokens(text) if re.search(r"[a-z]{4,}(one|two|three|four|eight)", word)}
            for text in (one, other)
        )
        assert words
        assert words <= others


def test_other_letters_are_no_numerals() -> None:
    for text in ("Syndrome X-linked", "the type I have", "I saw it", "type 2.5", "group of V", "type 20"):
        assert add_number_words(text) == text


def test_a_word_that_no_passage_has_stands_for_the_nearest(tmp_path: Path) -> None:
    retriever = built(tmp_path)
    exact = HybridRetriever(str(tmp_path), settings=SearchSettings(dense_weight=0.0, near_words=False))
    meant = {"gastroparisis": "gastroparesis", "gstroparesis": "gastroparesis", "alopurinol": "gout"}
    for query, found in (meant | {"allopurniol": "gout", "behet": "behcet", "metforrmin": "type2"}).items():
        assert [hit.passage.id for hit in retriever.search([query], top_k=5)[0]] == [found]
        assert exact.search([query], top_k=5) == [[]]


def words_of(*known: str) -> QueryWords:
    counts = {word: 10 - at for at, word in enumerate(known)}
    return QueryWords(lambda text: [[word] for word in text.split()], lambda: counts, lambda w: counts.get(w, 0), 20)


def test_near_is_what_a_typing_error_makes() -> None:
    words = words_of("colchicine", "colic", "25mg", "diverticul")
    for word in "colhicine colchcine colcchicine colcihcine colchicune".split():
        assert words.near(word) == ("colchicine",), word
    assert words.near("diverticulit") == ("diverticul",)
    # Two letters of eight, the first letter, another letter than a vowel, short words and numbers.
    for word in "colhicin kolchicine colchitine coli 24mg".split():
        assert words.near(word) == (), word


def test_another_drug_and_the_opposite_are_no_typing_errors() -> None:
    pairs = """saxagliptin sitagliptin, nimodipin nifedipin, pentobarbital phenobarbital, cycloserin cyclosporin,
    prednison prednisolon, hypernatremia hyponatremia, hypovolemia hypervolemia, hypervolemia hyperkalemia,
    intracellular intercellular, dysphagia dysphasia, abduction adduction, metrorrhagia menorrhagia, ilium ileum,
    heparin heparan, hydroxyzin hydralazin, clonazepam clorazepat, vinblastin vincristin"""
    for word, known in (pair.split() for pair in pairs.split(",")):
        assert words_of(known).near(word) == words_of(word).near(known) == ()


def test_the_more_frequent_of_the_near_goes_first() -> None:
    assert words_of("colitis", "colitus").near("colitiss") == ("colitis",), "only the nearest count"
    assert words_of("goiter", "goitre").near("goitere") == ("goiter", "goitre")
    words = words_of("metformin", "colchicine")
    assert words.searched("metformin colhicine zzz", near_words=True) == [["metformin", "colchicine", "zzz"]]
    assert words.searched("colhicine", near_words=False) == [["colhicine"]]
    assert words.replaced("metformin colhicine zzz") == {"colhicine": ("colchicine",)}


def test_coverage_by_hand() -> None:
    counts = {"gout": 1, "drug": 4}
    words = QueryWords(lambda text: [[w] for w in text.split()], lambda: counts, lambda w: counts.get(w, 0), 10)
    gout, drug, unknown = log(1 + 9.5 / 1.5), log(1 + 6.5 / 4.5), log(1 + 10.5 / 0.5)
    found = words.coverage("gout drug zebra", ["gout", "drug", "gout drug", "zebra", ""])
    total = gout + drug + unknown
    assert found == pytest.approx([gout / total, drug / total, (gout + drug) / total, unknown / total, 0.0])
    assert words.coverage("", ["anything"]) == [1.0]


def test_a_compound_is_covered_joined_or_by_its_parts() -> None:
    words = QueryWords(Analyser().groups, list, lambda word: 1, 10)
    pairs = {"beta-blocker": "beta blocker", "beta-blockers": "betablockers", "X-linked": "X linked"}
    pairs |= {"non-steroidal anti-inflammatory drugs": "nonsteroidal antiinflammatory drugs"}
    pairs |= {"alpha-1-antitrypsin deficiency": "alpha1 antitrypsin deficiency", "angio-oedema": "angioedema"}
    for query, text in pairs.items():
        assert words.coverage(query, [text, "nothing of it"]) == pytest.approx([1.0, 0.0])


def test_a_near_word_covers_nothing(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    retriever = built(tmp_path, SearchSettings(dense_weight=0.0, floor=0.5))
    assert retriever.search(["alopurinol"], top_k=3) == [[]]
    main(["search", "alopurinol", "--index", str(tmp_path), "--floor", "0"])
    out = capsys.readouterr().out
    assert out.startswith("No passage has 'alopurinol'. Searched for: allopurinol.")
    assert "Gout is treated" in out


def test_the_service_says_what_it_replaced(tmp_path: Path) -> None:
    built(tmp_path).close()
    served = Serving(tmp_path)
    try:
        answer = httpx.post(f"{served.url}/search", json={"queries": ["alopurinol", "gout"]}).json()
        assert answer["replaced"] == [{"alopurinol": ["allopurinol"]}, {}]
        assert answer["results"][0][0]["passage"]["id"] == "gout"
    finally:
        served.stop()
    exact = HybridRetriever(str(tmp_path), settings=SearchSettings(near_words=False))
    assert exact.replaced("alopurinol") == {}


def test_below_the_floor_nothing_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shown = built(tmp_path, SearchSettings(floor=0.6))
    assert [hit.passage.id for hit in shown.search(["gout allopurinol"], top_k=5)[0]] == ["gout"]
    assert shown.search(["psoriasis of the scalp treated"], top_k=5) == [[]]
    assert HybridRetriever(str(tmp_path), settings=SearchSettings()).search(["psoriasis treated"], top_k=5)[0]
    main(["search", "psoriasis treated", "--index", str(tmp_path)])
    assert capsys.readouterr().out == "Nothing found.\n"
    main(["search", "psoriasis treated", "--index", str(tmp_path), "--floor", "0.1"])
    assert "treated with" in capsys.readouterr().out
    with pytest.raises(RetrievalError, match="floor from 0 to 1"):
        SearchSettings(floor=1.5)
