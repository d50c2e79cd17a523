"""What a run compares, without I/O: lanes, requests, values, differences and effect keys."""
