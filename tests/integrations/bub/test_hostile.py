"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import tape
from integrations.hostile import outcomes
from tape.integrations.bub import TapeStore


def test_a_hostile_file_runs_no_code() -> None:
    """Whatever an entry says is an entry of Bub, or Corrupt; a tape with an odd name ends no listing."""
    id = tape.as_id("bub", "s")
    assert outcomes(lambda store: TapeStore(store).read("s"), id, "bub", events=("e",)) == {"Corrupt"}
    assert outcomes(lambda store: TapeStore(store).list_tapes(), id, "bub", agent="bub", events=("e",)) == set()
