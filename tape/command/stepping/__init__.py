"""The stepper as a full-screen view: what it reads, its state, its frames, and the terminal it runs in."""
