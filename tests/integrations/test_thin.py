"""Adapters are thin: they use public names of the store only, and are short."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import tape
from integrations.groups import GROUPS, HERE, told

ROOT = HERE.parent.parent
FOLDER = ROOT / "tape" / "integrations"
SHARED = ("__init__", "histories", "opening", "pydantic_messages")
"""What several adapters use."""
BESIDE = ("httpx", "seams", "temporal")
"""What records and replays runs, and the pointers of Temporal: not adapters of a framework's own store."""
MOST = 2_750
"""Lines of code that the adapters and what they share may have together: no docstrings, comments and blank lines."""
OPEN = ("tape", "tape.integrations", "tape.transcripts", "tape.errors", "tape.aio.workers")
"""The modules that an adapter may import from the package."""


def private(name: str) -> bool:
    return name.startswith("_") and not (name.startswith("__") and name.endswith("__"))


def reached(code: str) -> Iterator[str]:
    """Yield what a module reaches for behind the public names of the store."""
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Attribute) and private(node.attr):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield f"line {node.lineno}: .{node.attr}"
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "tape":
            module = node.module or ""
            if module not in OPEN and not module.startswith("tape.integrations."):
                yield f"line {node.lineno}: from {module}"
            for alias in node.names:
                if private(alias.name) or (module == "tape" and alias.name not in tape.__all__):
                    yield f"line {node.lineno}: {module}.{alias.name}"
        elif isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "tape" and alias.name not in OPEN:
                    yield f"line {node.lineno}: import {alias.name}"
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and re.fullmatch(r"_[a-z]\w*", node.value):
            yield f"line {node.lineno}: {node.value!r}"


def sources() -> dict[str, str]:
    return {path.relative_to(FOLDER).as_posix(): path.read_text("utf-8") for path in sorted(FOLDER.rglob("*.py"))}


def code_lines(code: str) -> int:
    """Return how many lines hold code: imports, too, but no docstrings, comments and blank lines."""
    uncounted: set[int] = set()
    for node in ast.walk(ast.parse(code)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and type(node.value.value) is str:
            uncounted.update(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    lines = enumerate(code.splitlines(), 1)
    return sum(number not in uncounted and not re.match(r"\s*(#|$)", line) for number, line in lines)


class TestThin:
    def test_no_adapter_touches_a_private_name(self) -> None:
        """Attributes with an underscore are an adapter's own, and what is imported from the package is public."""
        assert {name: list(reached(code)) for name, code in sources().items() if any(reached(code))} == {}

    def test_the_test_sees_what_it_looks_for(self) -> None:
        """Each way around the public names is found."""
        code = (
            "import tape.db\nfrom tape.store import Store\nfrom tape import new_ids\nstore._db\ngetattr(store, '_db')"
        )
        assert len(list(reached(code))) == 5
        assert list(reached("import tape\nfrom tape import Store\nself._store = tape.open()\nself.__class__")) == []

    def test_together_they_are_short(self) -> None:
        """What an application needs as well is in the store, and not in an adapter."""
        counted = [code for name, code in sources().items() if name.partition("/")[0] not in BESIDE]
        assert len(counted) > 20
        assert 1_000 < sum(map(code_lines, counted)) < MOST

    def test_only_code_is_counted(self) -> None:
        """Docstrings, comments and blank lines are not; imports and every line of a long statement are."""
        text = '"""Two\nlines."""\n\n\n# why\n'
        code = 'import re\nA = (\n    1,\n)\n"""Of A."""\n\ndef f():\n    """F."""\n    return 1\n'
        assert code_lines(text) == 0
        assert code_lines(text + code) == 6


class TestGroups:
    def test_every_adapter_has_a_group_and_an_extra(self) -> None:
        """A module of an adapter has its tests, its extra and its section in the docs, all of one name."""
        project = (ROOT / "pyproject.toml").read_text("utf-8")
        page = (ROOT / "docs" / "integrations.md").read_text("utf-8")
        for name in GROUPS:
            assert re.search(rf"^{GROUPS[name].extra} = \[", project, re.M), name
            built = (FOLDER / f"{name}.py").exists() or (FOLDER / name).is_dir()
            assert built == GROUPS[name].written, name
            assert not built or f"tape.integrations.{name}" in page, name
        modules = {path.stem for path in FOLDER.glob("*.py")} | {path.parent.name for path in FOLDER.glob("*/*.py")}
        assert modules - set(GROUPS) == {*SHARED, "seams"}

    def test_a_run_says_what_it_left_out(self) -> None:
        """The end of a run names the groups that ran, those that did not, and the command that installs one."""
        lines = told(["claude_agent"])
        assert lines[0] == "integrations run: claude_agent"
        left = [group.name for group in GROUPS.values() if group.written and group.lacks]
        assert all(f"{name} (no " in lines[1] for name in left)
        assert not left or "python -m tests.integrations NAME" in lines[2]


def test_tests_of_groups_are_named() -> None:
    """Every folder of tests is a group: one that is not would never be left out."""
    folders = {path.parent.name for path in HERE.glob("*/*.py")}
    assert folders <= set(GROUPS)
    assert Path(__file__).parent == HERE
