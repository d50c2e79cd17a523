"""How fast ``tape`` is: against hand-written code, against other stores, and as tapes grow.

``python -m benchmarks --help`` tells how to run all of it or one group.
"""
