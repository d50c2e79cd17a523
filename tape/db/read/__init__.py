"""Reading: the questions that handles ask of tapes."""
