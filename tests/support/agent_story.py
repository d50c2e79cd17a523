"""A session of a coding agent as real ones are: thinking, tools that fail, long texts, events, costs, and a fork."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import tape

__all__ = ["BEFORE", "AFTER", "agent_story"]

_STEPS = "\n".join(f"{n}. Step {n} of the release is done by the team on duty, as every week." for n in range(1, 31))
BEFORE = (
    f"# Release plan\n\n{_STEPS}\n\nThe release starts on Monday at nine. Whoever is on duty tells the others, watches "
    "the dashboards for an hour, and rolls back if more than two percent of the requests fail."
)
AFTER = BEFORE.replace("Step 17 of the release", "Step 17, the migration,").replace("Monday at nine", "Tuesday at ten")


def agent_story(store: tape.Store) -> tape.Tape:
    """Record the session on a tape ``0199c5f0-7a3e-7d52-9c1f-4b1f3f5f8a11`` and two more beside it."""
    chat = store.create("0199c5f0-7a3e-7d52-9c1f-4b1f3f5f8a11", name="Plan the release", agent="claude-code")
    clock = iter(datetime(2026, 3, 2, 9, 0, tzinfo=UTC) + timedelta(seconds=37 * step) for step in range(100))

    def say(id: str, role: str, content: Any) -> None:
        chat.append(role=role, content=content, id=id, actor=role, occurred_at=next(clock))

    def call(id: str, name: str, **given: Any) -> dict[str, Any]:
        return {"type": "tool_use", "id": id, "name": name, "input": given}

    def result(id: str, content: str, *, error: bool = False) -> dict[str, Any]:
        return {"type": "tool_result", "tool_use_id": id, "content": content, "is_error": error}

    def think(text: str) -> dict[str, Any]:
        return {"type": "thinking", "thinking": text, "signature": "c2lnbmF0dXJl" * 20}

    say("ask", "user", "Write the plan of the release, and check that the migration can run on a copy of the database.")
    say("m1", "assistant", [think("The user wants a plan. " * 30), call("toolu_01", "Bash", command="ls migrations")])
    say("m2", "user", [result("toolu_01", "0001_start.sql\n0002_owners.sql\n0003_drop_old.sql")])
    chat.record_usage(input_tokens=1_840, output_tokens=212, cost=8_700, model="claude-sonnet-4-5")
    chat.event("claude-code.system", {"type": "system", "content": "Context is 12% full", "level": "info"})
    say("m3", "assistant", [call("toolu_02", "Bash", command="psql copy < migrations/0003_drop_old.sql", timeout=60)])
    say("m4", "user", [result("toolu_02", 'ERROR:  relation "old_orders" does not exist', error=True)])
    say("plan", "assistant", BEFORE)
    chat.revise("plan", content=AFTER, actor="user")
    say("m5", "user", "日本語でも書いてください 🙂 \x1b[31mred\x1b[0m")
    chat.fork("0199c5f0-7a3e-7d52-9c1f-4b1f3f5f8a11/agent-reviewer", name="Review the plan").append(
        role="assistant", content="The plan is sound.", id="r1", occurred_at=next(clock)
    )
    chat.handoff("review", summary="The plan is written; the migration fails on the copy.", next_steps=["mend 0003"])
    other = store.create("0199c5ee-1111-7000-8000-000000000002", name="A question in passing about a much longer title")
    other.append(role="user", content="What is a tape?", id="q", occurred_at=next(clock))
    return chat
