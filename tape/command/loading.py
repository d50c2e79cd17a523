"""Loading: the garbage collector rests while the process of a command loads what it needs.

What is loaded stays. To look through it for garbage, again and again while it grows, takes a tenth of the time.
"""

from __future__ import annotations

import gc

__all__ = ["begin_loading", "end_loading"]

_loading = False


def begin_loading() -> None:
    """Let the collector rest. Only for a process that runs one command and ends."""
    global _loading
    if gc.isenabled():
        gc.disable()
        _loading = True


def end_loading() -> None:
    """Let the collector work again, on what comes from now on."""
    global _loading
    if _loading:
        _loading = False
        gc.freeze()
        gc.enable()
