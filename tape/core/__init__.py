"""The pure core: what an entry is, how entries fold into the view, how context is built.

Nothing in here imports SQLAlchemy, reads a clock or does I/O. The shell around it is ``tape.db``.
"""
