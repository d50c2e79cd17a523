"""Context: from the view to what a model is shown, and the requests of each API."""
