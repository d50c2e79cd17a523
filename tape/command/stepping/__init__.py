"""The stepper as a full-screen view: what it reads, where it stands, how it looks, and the terminal it runs in."""
