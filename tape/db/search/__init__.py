"""Search: the index of words, and queries on it."""
