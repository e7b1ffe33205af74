"""Benchmarks, grading (also the reward), metrics with uncertainty, reports."""
