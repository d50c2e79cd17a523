"""Runs: what an agent asked and was answered, recorded on a tape and run again from it.

``pure`` compares, ``recording`` reads a run from entries, ``matching`` and ``journal`` decide what each call does,
``wrapping`` makes functions of it, and ``opening``, ``checking`` and ``recovery`` are what programs call.
"""
