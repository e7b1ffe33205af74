"""The study of collapse."""
