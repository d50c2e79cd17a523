"""ADK's own contract tests against the adapter: those of its test file that take a session service, whichever it is.

Nothing of ADK's tests is kept here. Take ``tests/unittests/sessions/test_session_service.py`` of google/adk-python at
the release that is installed, and run, where ADK is installed:

    python -m tests.integrations.adk.upstream test_session_service.py [URL of an empty PostgreSQL]
"""

from __future__ import annotations

import asyncio
import inspect
import runpy
import sys
import tempfile
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tape
from tape.integrations.adk import TapeSessionService


def contract(file: str) -> dict[str, Callable[..., Any]]:
    """Return the tests that every session service has to pass."""
    found = runpy.run_path(file)
    return {
        name: test
        for name, test in found.items()
        if name.startswith("test_") and list(inspect.signature(test).parameters) == ["session_service"]
    }


async def passes(test: Callable[..., Any], store: tape.Store) -> bool:
    """Run one test on an empty store."""
    try:
        await test(TapeSessionService(store))
    except Exception:
        traceback.print_exc()
        return False
    return True


def main(file: str, url: str | None = None) -> int:
    """Run all; the status is 1 if one fails."""
    tests = contract(file)
    failed = []
    for number, (name, test) in enumerate(tests.items()):
        with tempfile.TemporaryDirectory() as folder:
            place: Any = url or Path(folder) / "agent.db"
            with tape.open(place, schema=None if url is None else f"adk_{number}") as store:
                if not asyncio.run(passes(test, store)):
                    failed.append(name)
    print(f"{len(tests) - len(failed)} of {len(tests)} passed", *failed)
    return int(bool(failed) or not tests)


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
