"""One training step of each rival of `benchmarks.step`, and the job that all of them do."""
