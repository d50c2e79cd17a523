"""The ``tape`` command: find, read, replay, move and repair tapes.

It needs the extra ``cli`` (typer and rich), which the library itself does without.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tape
from tape.command.loading import begin_loading

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with ``arguments``, or those of the process, and exit with its status."""
    if arguments is None:
        arguments = sys.argv[1:]
        begin_loading()
    if list(arguments) == ["--version"]:
        # Scripts and prompts ask for it, and it needs nothing that would have to be loaded.
        print(f"tape {tape.__version__}")
        sys.exit(0)
    from importlib.util import find_spec

    missing = next((name for name in _NEEDED if find_spec(name) is None), None)
    if missing is not None:
        print(f"tape: the package {missing!r} is not installed; run: pip install 'tape-store[cli]'", file=sys.stderr)
        sys.exit(1)
    from tape.command.app import run

    sys.exit(run(arguments))
