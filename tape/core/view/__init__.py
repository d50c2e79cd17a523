"""The view: how entries fold into rows, and the same rows in memory."""
