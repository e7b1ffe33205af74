"""The study of the budget."""
