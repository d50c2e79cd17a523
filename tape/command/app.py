"""One run of the whole command: the only place where errors become a line and an exit code."""

from __future__ import annotations

import functools
import os
import re
import sys
import traceback
from collections.abc import Sequence
from typing import Any

import typer
from typer.main import get_command

import tape
from tape.command.exit_codes import FAILED, INTERRUPTED, OK, USAGE, Failure, judge, words
from tape.command.output import clean
from tape.command.registry import ReaderGone, app

__all__ = ["run"]


@functools.cache
def _built() -> Any:
    """Return the command group; each command is built when it is used."""
    return get_command(app)


def _stand_in() -> None:
    """Open ``os.devnull`` for streams that were closed (``<&-``), which Python leaves at None.

    They are opened in the order of their numbers, so that no file of the store gets such a number and receives output.
    """
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode, encoding="utf-8"))  # noqa: SIM115 - open until the end


def run(arguments: Sequence[str]) -> int:
    """Run the command and return its exit code. Nothing but an exit code leaves this function."""
    debug = "--debug" in arguments
    _stand_in()
    if debug:
        import logging

        logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="%(name)s: %(message)s")
    try:
        code = _built().main(args=list(arguments), prog_name="tape", standalone_mode=False)
        sys.stdout.flush()
        return code if isinstance(code, int) else OK
    except ReaderGone:
        # The reader (``| head``) closed the pipe. Python would report that once more when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return OK
    except (KeyboardInterrupt, typer.Abort):
        return INTERRUPTED
    except SystemExit as error:
        if isinstance(error.code, str):
            return _fail(error.code, None, FAILED)
        return error.code or OK
    except Exception as error:
        if debug:
            traceback.print_exc()
        return _explain(error)


def _explain(error: Exception) -> int:
    """Print an error as one line with the next step, and return its exit code."""
    if isinstance(error, Failure):
        return _fail(str(error), error.hint, error.code)
    if isinstance(error, tape.TapeError):
        code, hint = judge(error)
        return _fail(words(error), hint, code)
    # Typer uses the errors of click or, in newer releases, of a copy of it. Both have this method.
    usage: Any = getattr(error, "format_message", None)
    if usage is not None:
        context: Any = getattr(error, "ctx", None)
        where = context.command_path if context is not None else "tape"
        return _fail(usage().rstrip("."), f"see: {where} --help", USAGE)
    if isinstance(error, RecursionError):
        return _fail("the input is nested too deeply", "use fewer levels of JSON", USAGE)
    if isinstance(error, UnicodeDecodeError):
        return _fail(f"the input is not UTF-8: {error}", "convert it to UTF-8 first", USAGE)
    if isinstance(error, OSError):
        named = f" {str(error.filename)!r}" if error.filename else ""
        return _fail(f"{error.strerror or error}{named}", None, FAILED)
    problem = f"unexpected error: {type(error).__name__}: {error}"
    return _fail(problem, "run it again with --debug and report the traceback", FAILED)


def _fail(problem: str, hint: str | None, code: int) -> int:
    # An address can contain a password, and a file name can contain anything.
    line = re.sub(r"//[^/@\s]*@", "//***@", " ".join(clean(problem).split()))
    print(f"tape: {line}; {hint}" if hint else f"tape: {line}", file=sys.stderr)
    return code
