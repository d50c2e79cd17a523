"""The repository's own rules: linted, formatted, and typed without exceptions."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("tape", "tests", "benchmarks", "alembic")


def check(*command: str) -> None:
    """Run a tool over the repository and hold that it finds nothing."""
    done = subprocess.run([sys.executable, "-m", *command], cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stdout + done.stderr


class TestQuality:
    """What every change has to pass."""

    def test_ruff_finds_nothing(self) -> None:
        """The linter has no complaint."""
        check("ruff", "check", "--no-cache", *CODE)

    def test_ruff_would_format_nothing(self) -> None:
        """Every module is formatted; the examples in the documents are set for reading."""
        check("ruff", "format", "--no-cache", "--check", *CODE)

    def test_mypy_finds_nothing(self) -> None:
        """Package, tests and benchmarks are typed, strictly."""
        check("mypy")

    @pytest.mark.parametrize("folder", ["tape", "alembic"])
    def test_modules_are_rooms(self, folder: str) -> None:
        """No module is longer than 700 lines."""
        long = {
            str(file.relative_to(ROOT)): count
            for file in sorted((ROOT / folder).rglob("*.py"))
            if (count := len(file.read_text().splitlines())) > 700
        }
        assert long == {}
