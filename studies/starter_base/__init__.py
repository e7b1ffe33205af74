"""Makes the packaged base policy, from the root of the repository: `python -m studies.starter_base build`."""
