"""Messages of every shape: their text, their tool calls, their tokens."""
