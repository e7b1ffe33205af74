"""Analyser, sentences and chunks: what a text becomes before it is indexed."""

from __future__ import annotations

import random

import pytest

from medagent.retrieval.analysis import Analyser
from medagent.retrieval.chunking import Document, Section, chunk_document, split_sentences
from medagent.retrieval.embedders import HashedNgramEmbedder
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.settings import Chunking

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
