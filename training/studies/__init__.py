"""Grids of arms and seeds, run and reported."""
