"""The ``tape`` command: find a tape, see what happened, step through it, and move or mend it.

It needs the extra ``cli`` (typer and rich), which the library itself does without.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

import tape

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with ``arguments``, or those of the process, and exit with its status."""
    arguments = sys.argv[1:] if arguments is None else arguments
    if list(arguments) == ["--version"]:
        # Scripts ask for it often, and for nothing else it could be had so cheaply.
        print(f"tape {tape.__version__}")
        sys.exit(0)
    try:
        import rich
        import typer  # noqa: F401

        del rich
    except ModuleNotFoundError as error:
        if error.name not in _NEEDED:
            raise
        print(f"tape: {error.name} is not installed: run: pip install 'tape-store[cli]'", file=sys.stderr)
        sys.exit(1)
    from tape.command.app import run

    sys.exit(run(arguments))
