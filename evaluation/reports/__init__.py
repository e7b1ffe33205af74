"""What an evaluation writes for people."""
