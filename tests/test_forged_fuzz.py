"""S14: no forged file harms a store. Each is refused, or afterwards everything about its tapes can be read."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.backends import Backend, MakeBackend
from support.sizes import full, heavy, size

SEED = int(os.environ.get("TAPE_TEST_SEED", "20261"))
FILES = int(os.environ.get("TAPE_TEST_FILES", size(40, 600)))
"""How many files are forged for SQLite; a tenth of it for PostgreSQL, where each takes ten times as long."""
LONGEST = 600
"""Seconds for all of them on a machine that is busy; alone on one core it is about half a minute."""


@pytest.fixture
def postgresql(make_backend: MakeBackend, tmp_path: Path) -> Iterator[Backend]:
    """A PostgreSQL schema of the test's own."""
    with make_backend("postgresql", tmp_path) as made:
        yield made


def fuzz(seed: int, count: int, *where: str) -> None:
    """Forge that many files and import them, in a process of its own that a watchdog can end."""
    command = [sys.executable, str(Path(__file__).parent / "support" / "fuzzing.py"), str(seed), str(count), *where]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LONGEST, check=False)
    print(done.stdout[-6_000:])
    assert done.returncode == 0, done.stderr[-4_000:]
    assert f"seed {seed}: " in done.stdout
    assert "'accepted'" in done.stdout
    assert "'refused'" in done.stdout


@heavy
def test_forged_files_are_refused_or_harmless() -> None:
    """Of all forged files (600 at full size) none makes a read, verify, list, retain or rebuild fail or spin."""
    fuzz(SEED, FILES, ":memory:")


@full
def test_forged_files_are_refused_or_harmless_on_postgresql(postgresql: Backend) -> None:
    """The same files do PostgreSQL no harm either."""
    assert postgresql.schema is not None
    fuzz(SEED, FILES // 10, postgresql.address, postgresql.schema)
