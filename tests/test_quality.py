"""The repository is linted, formatted and typed, and reads its rows by name."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

from support.sizes import heavy, size

ROOT = Path(__file__).resolve().parent.parent
CODE = ("tape", "tests", "benchmarks", "alembic")


def modules(folder: str) -> dict[str, str]:
    """Return the source of every module in a folder, by its path."""
    return {str(file.relative_to(ROOT)): file.read_text() for file in sorted((ROOT / folder).rglob("*.py"))}


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

    @heavy
    def test_mypy_finds_nothing(self) -> None:
        """The package is typed, strictly; at full size also tests, benchmarks and examples."""
        check("mypy", *size(["tape"], []))


class TestRows:
    """How rows of a query are read."""

    def test_rows_have_names(self) -> None:
        """A column of a row is asked for by its name, not by its number."""
        numbered = {
            name
            for name, code in modules("tape").items()
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.Subscript)
            and isinstance(node.value, ast.Name)
            and node.value.id == "row"
            and isinstance(node.slice, ast.Constant)
            and isinstance(node.slice.value, int)
        }
        assert numbered == set()
