"""Owners over several databases: where each owner's tapes are, calls over all of them, and moving an owner."""
