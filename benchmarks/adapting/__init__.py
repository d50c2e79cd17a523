"""The two sides of each adapter's race; see ``benchmarks/adapters.py``."""
