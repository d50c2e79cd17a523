"""Recording: from a plan to a committed entry and its projection."""
