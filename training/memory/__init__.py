"""Memory of a run: an estimate, the limit of tokens that follows from it, and `medagent plan`."""
