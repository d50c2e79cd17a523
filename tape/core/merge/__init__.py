"""Merging, without a database: what conflicts, and what is to be written."""
