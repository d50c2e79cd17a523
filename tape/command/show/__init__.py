"""How the command shows entries, histories and graphs. Pure: from values to text."""
