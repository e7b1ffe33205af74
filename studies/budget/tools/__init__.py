"""Tools of the budget study."""
