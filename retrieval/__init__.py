"""Corpora to passages, passages to an index, an index to search. Knows nothing of agents."""

import os

# bm25s computes with JAX while it is imported, where JAX is installed. JAX would take 75% of a GPU's memory then.
os.environ.setdefault("XLA_PYTHON_CLIENT_PREALLOCATE", "false")
