"""Supervised fine-tuning: what is taught, and the run that teaches it."""
