"""The tests of the adapters, a folder per framework; ``groups`` says what each needs."""
