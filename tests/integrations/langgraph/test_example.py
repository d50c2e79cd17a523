"""The program and the section that show LangGraph on tapes."""

from __future__ import annotations

from pathlib import Path

import pytest

from integrations.examples import check_section, printed


def test_the_example_runs(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """An agent with a tool and a memory, a branch, and what the tape shows of it."""
    lines = printed("langgraph_thread.py", monkeypatch, capsys, tmp_path)
    assert lines[0] == "remembered: ['Ann stays at the Alfama Inn']"
    assert lines[1:3] == ["user: Plan a trip to Lisbon", "user: No, to Porto"]
    assert "branches: 2" in lines
    assert lines[-1] == "verified: True"


def test_the_section_is_true(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The code of the page prints what it says."""
    check_section("langgraph", monkeypatch, tmp_path)
