"""Questions from the passages of an index, by rules, without a model: see `making`."""
