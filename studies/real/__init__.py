"""The study of a model that can read."""
