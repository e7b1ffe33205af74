"""Questions from the passages of an index: makers yield drafts, and checks keep the good ones."""
