"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import tape
from integrations.hostile import outcomes
from tape.integrations.langchain import TapeChatMessageHistory


def test_a_hostile_file_runs_no_code() -> None:
    """Whatever is kept beside a message is a message, or Corrupt."""
    id = tape.as_id("langchain", "s")
    assert outcomes(lambda store: TapeChatMessageHistory("s", store).messages, id, "langchain") == {"Corrupt"}
