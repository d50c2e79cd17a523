"""Forks: forking, merging, discarding and splitting tapes."""
