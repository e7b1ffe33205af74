"""Loads, measures, adapts and merges language models. vLLM's workers import this package, so it imports nothing."""
