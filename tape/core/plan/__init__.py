"""Plans: what a call becomes on the tape, decided against the view."""
