"""Text and queries: words, sentences, chunks, variants of spelling, the nearest known word, and a floor."""

from __future__ import annotations

import random
import re
from math import log
from pathlib import Path

import httpx
import pytest

from medagent.cli.main import main
from medagent.retrieval.analysis import Analyser
from medagent.retrieval.chunking import Document, Section, chunk_document, split_sentences
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.index import build_index
from medagent.retrieval.normalization import add_number_words, strip_accents, to_american
from medagent.retrieval.passages import Passage
from medagent.retrieval.query_match import QueryWords, operators_note
from medagent.retrieval.search import HybridRetriever
from medagent.retrieval.settings import Chunking, IndexSettings, SearchSettings
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
    found = [words.coverage("gout drug zebra", text) for text in ("gout", "drug", "gout drug", "zebra", "")]
    total = gout + drug + unknown
    assert found == pytest.approx([gout / total, drug / total, (gout + drug) / total, unknown / total, 0.0])
    assert words.coverage("", "anything") == 1.0


def test_a_compound_is_covered_joined_or_by_its_parts() -> None:
    words = QueryWords(Analyser().groups, list, lambda word: 1, 10)
    pairs = {"beta-blocker": "beta blocker", "beta-blockers": "betablockers", "X-linked": "X linked"}
    pairs |= {"non-steroidal anti-inflammatory drugs": "nonsteroidal antiinflammatory drugs"}
    pairs |= {"alpha-1-antitrypsin deficiency": "alpha1 antitrypsin deficiency", "angio-oedema": "angioedema"}
    for query, text in pairs.items():
        assert [words.coverage(query, each) for each in (text, "nothing of it")] == pytest.approx([1.0, 0.0])


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


count = HashedNgramEmbedder().count_tokens


def test_letters_digits_and_negations_that_distinguish_are_kept() -> None:
    analyser = Analyser()
    assert analyser.tokens("What is the treatment of a stroke?") == ["treatment", "stroke"]
    assert analyser.tokens("Is the WAS gene involved in IT? A cat was there.") == ["was", "gene", "involv", "it", "cat"]
    assert "a" in analyser.tokens("the influenza A virus")
    assert "a" in analyser.tokens("treatment of hepatitis a")
    assert analyser.tokens("no fever, not before") == ["no", "fever", "not", "befor"]
    assert analyser.tokens("WHAT IS THE CAUSE") == ["caus"]
    assert Analyser("biomedical-unstemmed").tokens("Infections of IL-6") == ["infections", "il", "6", "il6"]
    assert Analyser("words").tokens("The IL-6's") == ["the", "il", "6", "s"]


def test_sentences_are_split_at_their_ends_only() -> None:
    texts = ["One. |Two! |Three? |Four", "E. coli causes it (Fig. 2). |Give 0.5 mg.", "Seen by Smith et al. It was so."]
    texts += ["pH was 7.4. |IL-6 rose.", "A heading\n|- an item\n|- another", "vitamin. d lower case goes on"]
    for text in (*texts, 'He said "stop." |Then he left.'):
        assert split_sentences(text.replace("|", "")) == [sentence.strip() for sentence in text.split("|")]
    assert split_sentences("  \n ") == []


def test_chunks_keep_sentences_titles_and_every_word() -> None:
    rng = random.Random(1)
    text = " ".join(
        f"Start {' '.join(f'w{rng.randrange(999)}' for _ in range(rng.randrange(3, 30)))} end." for _ in range(200)
    )
    document = Document(
        "A title of six words here", (Section("Dose", text), Section("Short", "Only this.")), "s", "d1", 2020, "CC"
    )
    chunking = Chunking(max_tokens=80, overlap_tokens=20)
    passages = list(chunk_document(document, chunking, count))
    assert [p.id for p in passages] == [f"d1#{n}" for n in range(1, len(passages) + 1)]
    assert {(p.title, p.source, p.document, p.year, p.licence) for p in passages} == {
        (document.title, "s", "d1", 2020, "CC")
    }
    assert (passages[-1].section, passages[-1].text) == ("Short", "Only this.")
    sentences = split_sentences(text)
    seen = []
    for passage in passages[:-1]:
        assert count([passage.indexed_text])[0] <= 80
        found = split_sentences(passage.text)
        assert all(sentence in sentences for sentence in found), "sentences stay whole"
        first = sentences.index(found[0])
        assert first <= len(seen), "nothing is left out"
        repeated = len(seen) - first
        assert sum(count(found[:repeated])) <= 20
        seen = sentences[:first] + found
    assert seen == sentences
    assert list(chunk_document(document, chunking, count)) == passages
    (whole, short) = chunk_document(document, Chunking(0, 0), count)
    assert whole.text == text
    assert short.section == "Short"


def test_a_document_that_fits_keeps_its_id_and_one_without_gets_stable_ones() -> None:
    one = Document("t", (Section("", "Short text."),), id="mine", group="book")
    (passage,) = chunk_document(one, Chunking(), count)
    assert (passage.id, passage.document) == ("mine", "book")
    long = Document("t", (Section("", "Many words here. " * 100),))
    first, again = (list(chunk_document(long, Chunking(40, 0), count)) for _ in range(2))
    assert first == again
    assert len({p.document for p in first}) == 1
    assert first[0].document != ""


def test_long_texts_and_titles_cost_no_more_than_their_length() -> None:
    # With a look back at all of a sentence these two would take hours.
    assert len(split_sentences("A. " * 40_000)) == 1
    assert len(split_sentences("x" * 200_000 + "! Yes")) == 2
    long = Document("word " * 5_000, (Section("head " * 500, "One two three. " * 40),), id="d")
    passages = list(chunk_document(long, Chunking(60, 10), count))
    assert max(count([p.indexed_text])[0] for p in passages) <= 70
    assert passages[0].title.endswith("...")
    assert [p.text for p in chunk_document(Document("A title", (Section("", "One two."),)), Chunking(1, 0), count)]


@pytest.mark.parametrize("text", ["x" * 1000, "word " * 500, "一" * 300, "a,b;c." * 100])
def test_texts_without_sentences_are_cut_too(text: str) -> None:
    passages = list(chunk_document(Document("", (Section("", text),)), Chunking(30, 5), count))
    assert "".join("".join(p.text.split()) for p in passages).replace(" ", "") == "".join(text.split())
    assert all(count([p.text])[0] <= 30 for p in passages)


def test_wrong_chunking_settings_are_refused() -> None:
    for wrong in ((-1, 0), (100, 51), (10, -1)):
        with pytest.raises(RetrievalError, match="chunking"):
            Chunking(*wrong)


@pytest.mark.parametrize(
    "query",
    [
        "aspirin NOT children",
        "gout AND statin",
        'a "white coat" study',
        "gout -child",
        "cardi*",
        "gout[tiab]",
        "“no” x",
        "ASPIRIN NOT CHILDREN",
        "aspirin (-children)",
        "title:aspirin",
        "aspirin[All Fields]",
        "gout[MeSH Terms]",
    ],
)
def test_operators_of_a_query_are_said_not_to_be_read(query: str) -> None:
    assert "not read" in operators_note(query)


@pytest.mark.parametrize(
    "query", ["aspirin not children", "IL-6 and gout", "GOUT AND STATINS", "vitamin D - a review", "(+)-catechin 1:2"]
)
def test_plain_queries_have_no_note(query: str) -> None:
    assert operators_note(query) == ""


def test_operators_in_capitals_are_no_words_of_a_search(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    index = built(tmp_path / "i")
    assert index.words.searched("gout NOT edema", near_words=False) == [["gout", "edema"]]
    assert index.words.searched("GOUT NOT EDEMA", near_words=False) == [["gout", "not", "edema"]]
    assert index.words.coverage("gout AND allopurinol", TEXTS["gout"]) == 1.0
    server = Serving(tmp_path / "i")
    try:
        for where in (str(tmp_path / "i"), server.url):
            assert main(["search", "gout NOT edema", "--index", where]) == 0
            assert "Operators are not read" in capsys.readouterr().out
            assert main(["search", "gout NOT edema", "--index", where, "--json"]) == 0
            assert "Operators are not read" in capsys.readouterr().err
        answer = httpx.post(f"{server.url}/search", json={"queries": ["gout NOT edema", "gout"]}).json()
        assert [bool(note) for note in answer["notes"]] == [True, False]
    finally:
        server.stop()
