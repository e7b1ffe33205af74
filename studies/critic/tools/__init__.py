"""Tools of the critic study."""
