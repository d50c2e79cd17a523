"""Tapes that came from a file: the adapter opens them, runs nothing of them, and reports what it cannot read."""

from __future__ import annotations

import tape
from integrations.hostile import outcomes
from tape.integrations.strands import TapeSessionRepository as Sessions


def test_a_hostile_file_runs_no_code() -> None:
    """Messages, sessions, agents and graphs of any content are read, or Corrupt."""
    session, agent = tape.as_id("strands", "s"), tape.as_id("strands", "s", "a")
    slots = ("strands.session", "strands.multi-agent/m")
    assert outcomes(lambda store: Sessions(store).list_messages("s", "a"), agent, "strands") == {"Corrupt"}
    assert outcomes(lambda store: Sessions(store).read_message("s", "a", 0), agent, "strands") == {"Corrupt"}
    assert outcomes(lambda store: Sessions(store).read_session("s"), session, "strands", slots=slots) == {"Corrupt"}
    assert outcomes(lambda store: Sessions(store).read_multi_agent("s", "m"), session, "strands", slots=slots) == {
        "Corrupt"
    }
    kinds = outcomes(lambda store: Sessions(store).read_agent("s", "a"), agent, "strands", slots=("strands.agent",))
    assert kinds == {"Corrupt"}
