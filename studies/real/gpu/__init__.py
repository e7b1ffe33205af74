"""The study's runs for a GPU that is at hand for minutes."""
