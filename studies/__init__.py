"""Experiments with this package: configurations, results and tools. Not part of the installed package."""
