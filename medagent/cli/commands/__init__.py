"""What `--help` shows: each command with its options.

Imports stand inside the functions, so that help answers at once.
"""
