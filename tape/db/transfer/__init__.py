"""Export and import of tapes."""
