"""Requests: a context in the shape of each API, and what was repaired on the way."""
