"""How large the heavy tests are: small in every run, and at full size in a run of their own.

``TAPE_TEST_FULL=1 python -m pytest -m heavy`` runs them at full size, as CI does after the test command.
"""

from __future__ import annotations

import os
from typing import TypeVar

import pytest

__all__ = ["full", "heavy", "size"]

_T = TypeVar("_T")

heavy = pytest.mark.heavy
"""Marks the tests that are run again at full size."""

full = pytest.mark.full
"""Marks what only the run at full size tries: a test, or with the name of an engine its cases there."""


def size(usual: _T, full: _T) -> _T:
    """Return how much a heavy test does: the usual, or with ``TAPE_TEST_FULL`` all of it."""
    return full if os.environ.get("TAPE_TEST_FULL") else usual
