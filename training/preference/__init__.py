"""Preference training: pairs of a right and a wrong rollout of one question."""
