"""The feed: the entries of all tapes in the order in which they became final."""
