"""The SDK's own program, with a scripted model, on a tape: what it writes comes back, and resumes it elsewhere."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import anyio
import pytest
from claude_agent_sdk import ClaudeAgentOptions, ResultMessage, SystemMessage, query
from support.backends import Backend

from integrations.examples import EXAMPLES, check_section, printed
from tape.integrations.claude_agent import TapeSessionStore

sys.path.insert(0, str(EXAMPLES))
from scripted_anthropic import ScriptedAnthropic, asked, text, tool_use

TASK = {"description": "d", "prompt": "side question", "subagent_type": "general-purpose", "run_in_background": False}


def reply(request: dict[str, Any]) -> list[dict[str, Any]]:
    if asked(request, "side question") and not asked(request, "tool_result"):
        return [text("side answer")]
    if asked(request, "first question") and not asked(request, "tool_result"):
        return [tool_use("toolu_1", "Agent", TASK)]
    return [text("last answer")]


async def ask(
    sessions: TapeSessionStore, prompt: str, home: Path, model: ScriptedAnthropic, **options: Any
) -> tuple[str, list[Any]]:
    """Run the agent once; returns the session and all messages."""
    work = home.parent / "work"
    work.mkdir(exist_ok=True)
    env = {**model.environment, "HOME": str(home), "CLAUDE_CONFIG_DIR": str(home / "claude")}
    given = ClaudeAgentOptions(
        session_store=sessions, cwd=work, env=env, setting_sources=[], allowed_tools=["Agent"], **options
    )
    with anyio.fail_after(120):
        messages = [message async for message in query(prompt=prompt, options=given)]
    (result,) = [message for message in messages if isinstance(message, ResultMessage)]
    return result.session_id, messages


class TestRunner:
    def test_an_agent_is_mirrored_and_resumed(
        self, backend: Backend, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All lines of its files are on tapes, the subagent on a fork; with the files gone it is resumed from these."""
        store = backend.open()
        sessions = TapeSessionStore(store)
        one, two = tmp_path / "one", tmp_path / "two"
        with ScriptedAnthropic(reply) as model:
            monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(one / "claude"))
            session, messages = anyio.run(ask, sessions, "first question", one, model)
            assert not [each for each in messages if isinstance(each, SystemMessage) and each.subtype == "mirror_error"]
            (file,) = (one / "claude" / "projects").glob("*/*.jsonl")
            (side,) = (one / "claude" / "projects").glob("*/*/subagents/*.jsonl")
            project = file.parent.name
            written = [json.loads(line) for line in file.read_text("utf-8").splitlines()]
            key: Any = {"project_key": project, "session_id": session}
            held = anyio.run(sessions.load, key)
            # The program keeps lines about itself to itself; every record of the conversation is mirrored.
            rest = iter(written)
            assert [line for line in held if line not in rest] == []
            assert [line for line in written if "uuid" in line and line not in held] == []
            (subpath,) = anyio.run(sessions.list_subkeys, key)
            inside = [json.loads(line) for line in side.read_text("utf-8").splitlines()]
            mirrored = anyio.run(sessions.load, {**key, "subpath": subpath})
            assert [line for line in mirrored if "uuid" in line] == [line for line in inside if "uuid" in line]

            monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(two / "claude"))
            resumed, _ = anyio.run(_resumed, TapeSessionStore(store), two, model, session)
            assert resumed == session
            told = json.dumps(model.requests[-1]["messages"])
            assert all(words in told for words in ("first question", "side answer", "last answer", "second question"))
        fork, main = sorted(store.list().items, key=lambda info: info.parent is None)
        assert fork.parent == main.id
        said = [message.text for message in store.tape(main.id).messages() if message.text]
        assert said == ["first question", "last answer", "second question", "last answer"]
        assert [message.text for message in store.tape(fork.id).messages()] == ["side question", "side answer"]
        assert store.tape(main.id).usage().calls == 3
        assert store.verify().ok

    def test_the_example_runs(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
    ) -> None:
        """It prints what its page says."""
        monkeypatch.setenv("CLAUDE_CONFIG_DIR", str(tmp_path))
        lines = printed("claude_agent.py", monkeypatch, capsys, tmp_path)
        assert lines[:3] == [
            "Plan a trip to Lisbon → You stay at the Beira Mar.",
            "And the train? → The 9:30.",
            "session: 7 messages, verified: True",
        ]
        assert lines[-1] == "“Beira” is said on 2 tapes"

    def test_the_page_is_true(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        """The section's code runs and prints what it says."""
        check_section("claude_agent", monkeypatch, tmp_path)


async def _resumed(
    sessions: TapeSessionStore, home: Path, model: ScriptedAnthropic, session: str
) -> tuple[str, list[Any]]:
    return await ask(sessions, "second question", home, model, resume=session)


def test_an_adapter_is_a_session_store() -> None:
    """The SDK asks whether the optional methods are there by looking at the class."""
    from claude_agent_sdk import SessionStore

    for name in ("list_sessions", "list_session_summaries", "delete", "list_subkeys"):
        assert getattr(TapeSessionStore, name) is not getattr(SessionStore, name)
