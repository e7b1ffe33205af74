"""The study of the critic."""
