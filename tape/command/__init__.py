"""The ``tape`` command: find a tape, see what happened, step through it, and move or mend it.

It needs the extra ``cli`` (typer and rich), which the library itself does without.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence

__all__ = ["main"]

_NEEDED = ("typer", "rich")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command with ``arguments``, or those of the process, and exit with its status."""
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
