"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import tape
from integrations.hostile import outcomes
from tape.integrations.llama_index import TapeChatStore


def test_a_hostile_file_runs_no_code() -> None:
    """Whatever is kept beside a message is a message, or Corrupt; a tape with an odd name ends no listing."""
    id = tape.as_id("llama-index", "s")
    assert outcomes(lambda store: TapeChatStore(store).get_messages("s"), id, "llama-index") == {"Corrupt"}
    assert outcomes(lambda store: TapeChatStore(store).get_keys(), id, "llama-index", agent="llama-index") == set()
