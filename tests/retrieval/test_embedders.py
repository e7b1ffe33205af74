"""Embedders: real sentence-transformers and transformers code, on small models that the tests make themselves."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from medagent.retrieval.embedders import (
    HashedNgramEmbedder,
    MedCPTEmbedder,
    SentenceTransformerEmbedder,
    embedder_from_identity,
    family_prefixes,
)
from medagent.retrieval.errors import RetrievalError
from medagent.retrieval.index import build_index
from medagent.retrieval.manifest import Manifest
from medagent.retrieval.passages import Passage
from medagent.retrieval.rerank import CrossEncoderReranker
from medagent.retrieval.search import HybridRetriever
from tests.retrieval.support import PASSAGES


def make_bert(folder: Path, *, seed: int, classifier: bool = False) -> Path:
    """A tiny random BERT with a word-piece tokenizer of its own."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel, BertTokenizerFast

    folder.mkdir(parents=True)
    words = "query passage : the first line drug is condition agent gout title text".split()
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    pieces = [*words, *letters, *".-", *(f"##{letter}" for letter in letters)]
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *pieces]
    (folder / "vocab.txt").write_text("\n".join(vocabulary))
    BertTokenizerFast(vocab=str(folder / "vocab.txt")).save_pretrained(folder)
    torch.manual_seed(seed)
    sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 64}
    config = BertConfig(vocab_size=len(vocabulary), num_labels=1, **sizes)
    (BertForSequenceClassification(config) if classifier else BertModel(config)).eval().save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def sentence_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    sentence_transformers = pytest.importorskip("sentence_transformers")
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    folder = tmp_path_factory.mktemp("models")
    transformer = Transformer(str(make_bert(folder / "bert", seed=0)), max_seq_length=64)
    model = sentence_transformers.SentenceTransformer(modules=[transformer, Pooling(32)], device="cpu")
    model.save(str(folder / "e5-tiny"))
    return folder / "e5-tiny"


def test_hashed_vectors_are_deterministic_and_of_unit_length() -> None:
    embedder = HashedNgramEmbedder(128)
    vectors = embedder.embed_queries(["gout", "erythema migrans"])
    assert vectors.shape == (2, 128)
    assert vectors.dtype == np.float32
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-6)
    again = embedder_from_identity(embedder.identity)
    np.testing.assert_array_equal(again.embed_passages([Passage.make("", "gout")]), vectors[:1])
    assert again.dimension == 128
    assert embedder.count_tokens(["IL-6 rose.", ""]) == [5, 0]
    for unknown in ("word2vec", "medcpt|only-one", "sentence-transformers|a|b"):
        with pytest.raises(RetrievalError, match="unknown"):
            embedder_from_identity(unknown)


def test_a_sentence_transformers_model_from_build_to_search(sentence_model: Path, tmp_path: Path) -> None:
    embedder = embedder_from_identity(str(sentence_model))
    assert isinstance(embedder, SentenceTransformerEmbedder)
    assert embedder.identity == f"sentence-transformers|{sentence_model}|query: |passage: ", "those of its family"
    again, plain = embedder_from_identity(embedder.identity), SentenceTransformerEmbedder(str(sentence_model), "", "")
    asked, expected = (
        again.embed_queries(["gout"]),
        plain.embed_queries(["query: gout", "passage: title\ngout", "gout"]),
    )
    passages = again.embed_passages([Passage.make("title", "gout")])
    np.testing.assert_allclose(np.concatenate([asked, passages]), expected[:2], atol=1e-6)
    assert not np.allclose(asked, expected[2:], atol=1e-3)
    np.testing.assert_allclose(np.linalg.norm(expected, axis=1), 1, rtol=1e-5)
    assert embedder.max_tokens == 64 - 2 - 2
    assert embedder.count_tokens(["gout title", "x" * 200])[0] == 2
    build_index(PASSAGES, tmp_path / "index", embedder)
    manifest = Manifest.read(tmp_path / "index")
    assert (manifest.dimension, manifest.space, manifest.settings.search.dense_weight) == (32, "cosine", 1.25)
    assert len(HybridRetriever(str(tmp_path / "index")).search(["agent7"], top_k=3)[0]) == 3


def test_what_families_ask_for() -> None:
    families = {"intfloat/e5-base-v2": "query: ", "intfloat/multilingual-e5-small": "query: ", "BAAI/bge-m3": ""}
    families |= {
        "BAAI/bge-small-en-v1.5": "Represent this",
        "intfloat/multilingual-e5-large-instruct": "Instruct: Give",
    }
    for model, query in families.items():
        assert family_prefixes(model, {})[0][:14] == query
    assert family_prefixes("intfloat/e5-base-v2", {})[1] == "passage: "
    own = {"query": "Q: ", "document": "D: "}
    assert family_prefixes("intfloat/e5-base-v2", own) == ("Q: ", "D: "), "a model's own come first"
    assert family_prefixes("sentence-transformers/all-MiniLM-L6-v2", {"query": "", "document": ""}) == ("", "")


def test_medcpt_is_used_as_its_authors_use_it(tmp_path: Path) -> None:
    import torch
    from transformers import AutoModel, AutoTokenizer

    query, article = make_bert(tmp_path / "q", seed=1), make_bert(tmp_path / "a", seed=2)
    embedder = embedder_from_identity(f"medcpt|{query}|{article}", device="cpu")
    assert isinstance(embedder, MedCPTEmbedder)
    passages = [Passage.make("gout", "the first line drug " * 300), Passage.make("b", "c", section="d")]
    pairs = [["gout", passages[0].text], ["b", "d\nc"]]
    tokenizer, model = AutoTokenizer.from_pretrained(article), AutoModel.from_pretrained(article).eval()
    with torch.no_grad():
        batch = tokenizer(pairs, truncation=True, padding=True, return_tensors="pt", max_length=512)
        expected = model(**batch).last_hidden_state[:, 0, :].numpy()
    np.testing.assert_allclose(embedder.embed_passages(passages), expected, atol=1e-5)
    queries = ["condition a", "gout " * 200]
    tokenizer, model = AutoTokenizer.from_pretrained(query), AutoModel.from_pretrained(query).eval()
    with torch.no_grad():
        batch = tokenizer(queries, truncation=True, padding=True, return_tensors="pt", max_length=64)
        expected = model(**batch).last_hidden_state[:, 0, :].numpy()
    np.testing.assert_allclose(embedder.embed_queries(queries), expected, atol=1e-5)
    assert embedder.embed_passages([]).shape == (0, 32)
    build_index(PASSAGES, tmp_path / "index", embedder)
    assert Manifest.read(tmp_path / "index").space == "ip"
    retriever = HybridRetriever(str(tmp_path / "index"), embedder)
    products = embedder.embed_queries(["agent7"])[0] @ embedder.embed_passages(retriever.passages).T
    dense, _ = retriever.rankings(["agent7"], num_candidates=10)
    assert dense[0][:5] == np.argsort(-products, kind="stable")[:5].tolist(), "ranked by inner product, lengths and all"


def test_a_cross_encoder_reranks(tmp_path: Path) -> None:
    pytest.importorskip("sentence_transformers")
    reranker = CrossEncoderReranker(
        str(make_bert(tmp_path / "ce", seed=3, classifier=True)), num_candidates=6, device="cpu"
    )
    build_index(PASSAGES, tmp_path / "index", HashedNgramEmbedder(64))
    plain = HybridRetriever(str(tmp_path / "index")).search(["agent7 gout"], top_k=6)[0]
    hits = HybridRetriever(str(tmp_path / "index"), reranker=reranker).search(["agent7 gout"], top_k=6)[0]
    scores = reranker.scores("agent7 gout", [hit.passage for hit in plain])
    order = sorted(range(6), key=lambda i: -scores[i])
    assert [hit.passage.id for hit in hits] == [plain[i].passage.id for i in order]


def test_missing_packages_and_models_are_explained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(RetrievalError, match="cannot be loaded"):
        embedder_from_identity(f"medcpt|{tmp_path}/q|{tmp_path}/a")
    if "sentence_transformers" in sys.modules:
        with pytest.raises(RetrievalError, match="cannot be loaded"):
            embedder_from_identity(str(tmp_path / "nothing"))
        with pytest.raises(RetrievalError, match="cannot be loaded"):
            CrossEncoderReranker(str(tmp_path / "nothing"))
    monkeypatch.setitem(sys.modules, "sentence_transformers", None)
    with pytest.raises(RetrievalError, match="pip install"):
        SentenceTransformerEmbedder("org/e5")
    with pytest.raises(RetrievalError, match="pip install"):
        CrossEncoderReranker("org/ce")


TEXTS = [
    "Which drug is given first for acute gout?",
    "TNF-\u03b1 and 25-OH vitamin D, 5 mg/kg",
    "",
    "a",
    "ab c",
    "  x\n\ty\u00a0z  ",
    "Beh\u00e7et \u0130stanbul \u00df \ufb01 \u338e \U0001f600\U0001f600\U0001f600",
    "pseudopseudohypoparathyroidism " * 50,
]


@pytest.mark.parametrize(("dimension", "least", "most"), [(1024, 3, 5), (64, 3, 5), (100, 2, 2), (512, 1, 6)])
def test_the_vectors_are_scikit_learns(dimension: int, least: int, most: int) -> None:
    theirs = HashingVectorizer(analyzer="char_wb", ngram_range=(least, most), n_features=dimension).transform(TEXTS)
    ours = HashedNgramEmbedder(dimension, least, most).embed_queries(TEXTS)
    assert ours.dtype == np.float32
    assert np.array_equal(ours, np.asarray(theirs.toarray(), dtype=np.float32))


def test_a_search_imports_no_model_library() -> None:
    heavy = ("torch", "transformers", "peft", "sklearn", "scipy.stats", "trafilatura", "mammoth", "pypdfium2")
    code = f"import sys, medagent.cli.main, medagent.cli.index; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
