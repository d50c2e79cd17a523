"""Sessions of Claude Code as it writes them, made up from a seed: branches, tools, subagents, and what is odd."""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from typing import Any

__all__ = ["ODD", "distinct", "session"]

Line = dict[str, Any]

ODD: list[Any] = [
    "\ud800 half a character",
    float("inf"),
    2**70,
    -(2**63),
    1e-300,
    "\0 and \x1f",
    {"": None, "tape.raw": "mine", "~": [[]]},
    {"deep": json.loads("[" * 250 + "]" * 250)},
    "",
    [],
    True,
]
"""Values that some layer on the way might refuse or alter."""


def session(seed: int, length: int = 60) -> list[Line]:
    """Return the lines of a session; equal seeds give equal sessions."""
    return list(_Session(random.Random(seed)).lines(length))


def distinct(lines: list[Line]) -> list[Line]:
    """Return the lines that a store must give back: all but those that repeat a uuid with the same content."""
    kept: list[Line] = []
    seen: set[str] = set()
    for line in lines:
        told = json.dumps(line, sort_keys=True) if isinstance(line.get("uuid"), str) and line["uuid"].strip() else ""
        if not told or told not in seen:
            kept.append(line)
        seen.add(told)
    return kept


class _Session:
    def __init__(self, pick: random.Random) -> None:
        self.pick = pick
        self.made = 0
        self.uuids: list[str] = []
        self.sides: dict[str, list[str]] = {}
        self.open_calls: list[tuple[str, str]] = []

    def lines(self, length: int) -> Iterator[Line]:
        verbs = [
            self.ask,
            self.answer,
            self.call,
            self.result,
            self.note,
            self.title,
            self.boundary,
            self.side,
            self.odd,
        ]
        written: list[Line] = []
        for _ in range(length):
            if written and self.pick.random() < 0.08:
                line = self.again(self.pick.choice(written))
            else:
                line = self.pick.choices(verbs, [4, 4, 3, 3, 3, 1, 1, 2, 2])[0]()
            written.append(line)
            yield line

    def again(self, line: Line) -> Line:
        """Return a line that was written before, sometimes with other content."""
        return line if self.pick.random() < 0.5 else {**line, "rewritten": self.pick.randrange(3)}

    def uuid(self) -> str:
        self.made += 1
        return f"{self.made:08d}-0000-4000-8000-{self.pick.randrange(16**12):012x}"

    def record(self, type: str, **fields: Any) -> Line:
        """Return a record that continues the last one, or goes back to an earlier one."""
        back = self.pick.random() < 0.1
        parent = None if not self.uuids else self.pick.choice(self.uuids) if back else self.uuids[-1]
        uuid = self.uuid()
        self.uuids.append(uuid)
        stamp = f"2026-03-01T10:00:{self.made % 60:02d}.000Z"
        return {
            "parentUuid": parent,
            "isSidechain": False,
            "type": type,
            "uuid": uuid,
            "sessionId": "s",
            "timestamp": stamp,
            "cwd": "/home/dev/shop",
            **fields,
        }

    def ask(self) -> Line:
        return self.record("user", message={"role": "user", "content": f"question {self.made}"})

    def answer(self) -> Line:
        text = [{"type": "text", "text": f"answer {self.made}"}]
        usage = {"input_tokens": self.made, "output_tokens": 3, "cache_read_input_tokens": 1}
        message = {"id": f"msg_{self.made}", "role": "assistant", "content": text, "usage": usage, "model": "m"}
        return self.record("assistant", message=message)

    def call(self) -> Line:
        made = f"toolu_{self.made}"
        use = [{"type": "tool_use", "id": made, "name": "Bash", "input": {"command": "ls"}}]
        line = self.record("assistant", message={"id": f"msg_{self.made}", "role": "assistant", "content": use})
        self.open_calls.append((made, line["uuid"]))
        return line

    def result(self) -> Line:
        if not self.open_calls:
            return self.ask()
        call, parent = self.open_calls.pop(self.pick.randrange(len(self.open_calls)))
        content = [{"type": "tool_result", "tool_use_id": call, "content": "done"}]
        return {**self.record("user", message={"role": "user", "content": content}), "parentUuid": parent}

    def note(self) -> Line:
        return self.record(self.pick.choice(["attachment", "system", "progress"]), content={"n": self.made})

    def title(self) -> Line:
        return self.pick.choice(
            [
                {"type": "custom-title", "customTitle": f"Title {self.made}", "sessionId": "s"},
                {"type": "ai-title", "aiTitle": "Made up", "sessionId": "s"},
                {"type": "summary", "summary": "Short", "leafUuid": self.uuids[-1] if self.uuids else "none"},
                {"type": "mode", "mode": "plan"},
                {"type": "tag", "tag": self.pick.choice(["", "kept"])},
            ]
        )

    def boundary(self) -> Line:
        line = self.record("system", subtype="compact_boundary", content="compacted")
        return {**line, "parentUuid": None, "logicalParentUuid": line["parentUuid"]}

    def side(self) -> Line:
        """Return a record of a subagent, as old versions wrote them into the session's own file."""
        agent = self.pick.choice(["one", "two"])
        before = self.sides.setdefault(agent, [])
        uuid = self.uuid()
        role = "assistant" if len(before) % 2 else "user"
        line = {
            "parentUuid": before[-1] if before else None,
            "isSidechain": True,
            "agentId": agent,
            "type": role,
            "uuid": uuid,
            "sessionId": "s",
            "message": {"role": role, "content": f"{agent} {uuid}"},
        }
        before.append(uuid)
        return line

    def odd(self) -> Line:
        """Return what no careful program writes."""
        value = self.pick.choice(ODD)
        makers: list[Callable[[], Line]] = [
            lambda: self.record("user", message={"role": "user", "content": value}),
            lambda: self.record("assistant", message={"content": "no role"}),
            lambda: self.record("user", message={"role": value, "content": [value]}),
            lambda: self.record("user", message="no message"),
            lambda: self.record(f"kind {self.made} \x07", value=value),
            lambda: {**self.ask(), "agentId": "x" * 300},
            lambda: {**self.ask(), "uuid": "u" * 300 + str(self.made)},
            lambda: {**self.ask(), "uuid": f"~{self.made}"},
            lambda: {**self.ask(), "tape.no_role": True, "tape.raw": "hers"},
            lambda: {"type": "x", "value": value},
            lambda: {"no": "type", "value": value},
            lambda: {"type": "x", "uuid": 7, "parentUuid": [1]},
            lambda: {"type": "custom-title", "customTitle": "\0 \ud800" + "t" * 400},
        ]
        return self.pick.choice(makers)()
