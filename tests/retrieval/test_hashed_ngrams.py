"""Hashed n-grams equal scikit-learn's, without importing it: a search at the prompt starts at once."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from sklearn.feature_extraction.text import HashingVectorizer

from medagent.retrieval.embedders import HashedNgramEmbedder

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
    heavy = ("torch", "transformers", "peft", "sklearn", "scipy.stats", "trafilatura", "docx", "pypdfium2")
    code = f"import sys, medagent.cli.main, medagent.cli.search; print([m for m in {heavy} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
