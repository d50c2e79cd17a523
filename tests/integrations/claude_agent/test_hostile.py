"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

import tape
from integrations.hostile import outcomes
from tape.integrations.claude_agent import TapeSessionStore

KEY: Any = {"project_key": "p", "session_id": "s"}


def raw(value: Any) -> Any:
    return {"type": "user", "tape.raw": value}


def text(value: Any) -> Any:
    return raw("{" if value is None else f"[{value!r}")


@pytest.mark.parametrize("wrap", [lambda value: value, raw, text], ids=["values", "originals", "texts"])
def test_a_hostile_file_runs_no_code(wrap: Any) -> None:
    """Lines of any content are lines, or Corrupt; summaries and lists of sessions are data."""
    names: Any = {
        "events": ("claude-code.record", "claude-code.user"),
        "slots": ("claude-agent.summary",),
        "owner": "p",
    }
    for read in (
        lambda store: asyncio.run(TapeSessionStore(store).load(KEY)),
        lambda store: asyncio.run(TapeSessionStore(store).list_session_summaries("p")),
        lambda store: asyncio.run(TapeSessionStore(store).list_subkeys(KEY)),
    ):
        assert outcomes(read, "claude//p/s", "claude-code", wrap=wrap, **names) <= {"Corrupt"}


def test_a_session_of_a_file_goes_on() -> None:
    """A batch is written behind whatever is there."""

    def write(store: tape.Store) -> None:
        line: Any = {"type": "user", "uuid": "u", "message": {"role": "user", "content": "Hi"}}
        asyncio.run(TapeSessionStore(store).append(KEY, [line]))

    names: Any = {"events": ("claude-code.record", "claude-code.user"), "owner": "p", "key": "claude-code:0"}
    assert outcomes(write, "claude//p/s", "claude-code", wrap=raw, **names) <= {"Corrupt"}
