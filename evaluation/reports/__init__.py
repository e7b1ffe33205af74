"""The reports of an evaluation, for people."""
