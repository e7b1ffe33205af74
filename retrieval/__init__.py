"""Corpora to passages, passages to an index, an index to search. Knows nothing of agents."""
