"""The repository's own rules: linted, formatted, typed without exceptions, and nothing larger than its bar."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("tape", "tests", "benchmarks", "alembic")

LONG_MODULES: set[str] = {
    "tape/aio.py",
    "tape/db/maintain/audit.py",
    "tape/db/record/recorder.py",
    "tape/db/transfer/transfer.py",
    "tape/handles/memory.py",
    "tape/handles/tape.py",
}
"""Modules that are still past the bar: take out what has become short, and add nothing."""
LONG_FUNCTIONS: set[str] = {
    "tape/db/forks/branching.py:_merge",
    "tape/db/maintain/audit.py:_chain",
    "tape/db/maintain/audit.py:rows_of",
    "tape/db/schema/tables.py:__init__",
    "tape/db/sql/branches.py:_define_branches",
    "tape/db/sql/catalog.py:_define_purge",
    "tape/db/sql/catalog.py:_define_strays",
    "tape/db/sql/feeds.py:_define_feeds",
    "tape/db/sql/lineages.py:_define_lineage",
    "tape/db/sql/lookups.py:_define_lookups",
    "tape/db/sql/memory.py:_define_memory",
    "tape/db/sql/reads.py:_define_reads",
    "tape/db/sql/searches.py:_define_index",
    "tape/db/sql/searches.py:_define_searches",
    "tape/db/sql/writes.py:_define_heads",
    "tape/db/sql/writes.py:_define_projection",
    "tape/demo.py:story",
    "tape/handles/memory.py:_begin_compaction",
    "tape/tools.py:tape_tools",
}
"""Functions that still are."""
NUMBERED_ROWS: set[str] = {
    "tape/command/verbs/maintain.py",
    "tape/db/feed/feed.py",
    "tape/db/forks/branching.py",
    "tape/db/forks/merge_messages.py",
    "tape/db/forks/split.py",
    "tape/db/maintain/audit.py",
    "tape/db/maintain/audit_index.py",
    "tape/db/maintain/inspect.py",
    "tape/db/maintain/purge.py",
    "tape/db/read/catalog.py",
    "tape/db/read/compacting.py",
    "tape/db/read/contexts.py",
    "tape/db/read/reader.py",
    "tape/db/read/window.py",
    "tape/db/record/batches.py",
    "tape/db/record/lookup.py",
    "tape/db/record/recorder.py",
    "tape/db/search/index.py",
    "tape/db/search/search.py",
    "tape/db/transfer/citing.py",
    "tape/db/transfer/copy.py",
    "tape/db/transfer/staging.py",
    "tape/db/transfer/transfer.py",
    "tape/db/view/memory.py",
    "tape/db/view/paths.py",
    "tape/db/view/rows.py",
}
"""Modules that still ask rows by number."""


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

    def test_mypy_finds_nothing(self) -> None:
        """Package, tests and benchmarks are typed, strictly."""
        check("mypy")


class TestBars:
    """How large things may be. What is still past a bar is listed, and the list must be exact."""

    @pytest.mark.parametrize(("folder", "bar"), [("tape", 500), ("tests", 700), ("alembic", 700)])
    def test_modules_are_rooms(self, folder: str, bar: int) -> None:
        """No module is longer than fits into one's head."""
        long = {name for name, code in modules(folder).items() if len(code.splitlines()) > bar}
        assert long == {name for name in LONG_MODULES if name.startswith(f"{folder}/")}

    def test_functions_are_short(self) -> None:
        """No function of the package is longer than 60 lines."""
        long = {
            f"{name}:{node.name}"
            for name, code in modules("tape").items()
            for node in ast.walk(ast.parse(code))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
            if (node.end_lineno or 0) - node.lineno >= 60
        }
        assert long == LONG_FUNCTIONS

    def test_folders_are_small(self) -> None:
        """No folder of the package holds more than 14 modules."""
        held = Counter(str(Path(name).parent) for name in modules("tape") if not name.endswith("__init__.py"))
        assert {folder: count for folder, count in held.items() if count > 14} == {}

    def test_rows_have_names(self) -> None:
        """A column of a row is asked for by its name, not by its number, outside the types of the rows."""
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
        assert numbered - {"tape/db/sql/rows.py"} == NUMBERED_ROWS
