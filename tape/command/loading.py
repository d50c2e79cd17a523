"""Loading: the garbage collector is disabled while the process of a command imports its modules.

Imported modules are never garbage. Collecting repeatedly while they load takes a tenth of the time of a command.
"""

from __future__ import annotations

import gc

__all__ = ["begin_loading", "end_loading"]

_loading = False


def begin_loading() -> None:
    """Disable the garbage collector. Only for a process that runs one command and ends."""
    global _loading
    if gc.isenabled():
        gc.disable()
        _loading = True


def end_loading() -> None:
    """Enable the garbage collector again, for objects that are created from now on."""
    global _loading
    if _loading:
        _loading = False
        gc.freeze()
        gc.enable()
