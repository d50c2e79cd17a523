"""Running what a reader of the page would: a program of ``examples/integrations``, and the blocks of a section."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest
from support.pages import run

from integrations.groups import HERE

__all__ = ["check_section", "printed"]

PAGE = HERE.parent.parent / "docs" / "integrations.md"
EXAMPLES = HERE.parent.parent / "examples" / "integrations"


def printed(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> list[str]:
    """Run an example in this process with a scratch folder of its own; returns the lines that it printed."""
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    monkeypatch.setattr("tempfile.tempdir", None)
    monkeypatch.setattr(sys, "argv", [name])
    monkeypatch.syspath_prepend(str(EXAMPLES))
    runpy.run_path(str(EXAMPLES / name), run_name="__main__")
    return capsys.readouterr().out.splitlines()


def check_section(module: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Run the Python blocks of the page's sections that name an adapter, and hold that they print what they say."""
    monkeypatch.chdir(tmp_path)
    sections = PAGE.read_text("utf-8").split("\n## ")[1:]
    (section,) = [section for section in sections if f"tape.integrations.{module}" in section]
    told = run(PAGE, section)
    assert told, "the section shows no code"
    for line, promises, output in told:
        assert output == promises, f"the block at line {line} of the section"
