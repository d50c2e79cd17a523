"""Seams: objects that put a run between an agent framework and its model, so that calls are recorded and replayed.

Each takes the run that ``tape.record`` or ``tape.replay`` gives. Nothing is patched.
"""
