"""Handles: what a program holds of a tape, by what it does with it."""
