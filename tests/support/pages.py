"""The Python of a page in docs/: what its blocks say, and running them."""

from __future__ import annotations

import re
from contextlib import redirect_stdout
from io import StringIO
from pathlib import Path
from typing import Any

import sqlalchemy as sa

__all__ = ["blocks", "run"]


def blocks(text: str, language: str) -> list[tuple[int, str]]:
    """Return the fenced blocks of a language, each with the line on which its code begins."""
    found = re.finditer(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    return [(text.count("\n", 0, match.start(1)) + 1, match[1]) for match in found]


def promised(code: str) -> list[str]:
    """Return what the comments behind the ``print`` calls of a block say will be printed."""
    return re.findall(r"^\s*print\(.*\)  # (.+)$", code, re.M)


def run(page: Path, text: str) -> list[tuple[int, list[str], list[str]]]:
    """Run the Python blocks of a text in order, in one namespace; return each one's line, promises and output."""
    namespace: dict[str, Any] = {"__name__": page.stem}
    told = []
    for line, code in blocks(text, "python"):
        out = StringIO()
        with redirect_stdout(out):
            # Blank lines in front let a traceback name the line of the page.
            exec(compile("\n" * (line - 1) + code, str(page), "exec"), namespace)
        told.append((line, promised(code), out.getvalue().splitlines()))
    for value in namespace.values():
        if isinstance(value, sa.Engine):
            # An application's engine lives as long as the application, which here ends with the page.
            value.dispose()
    return told
