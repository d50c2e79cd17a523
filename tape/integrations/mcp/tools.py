"""The tools: what a client may ask of the store, and with ``write`` may do to it."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec

import msgspec
from mcp.server.mcpserver.exceptions import ToolError

from tape import Snapshot, Store, TapeError

__all__ = ["Reading", "Writing", "as_tool", "shown"]

_MOST = 200
_BYTES = 200_000
"""How many items, and about how many bytes of them, an answer has at most."""
_INNER = ("stamp", "occurred", "position", "version", "tokens")
_ACTOR = "mcp"

P = ParamSpec("P")
Answer = dict[str, Any]
Fields = dict[str, Any] | None
Names = list[str] | None


def as_tool(work: Callable[P, Answer]) -> Callable[P, Answer]:
    """Return a tool whose refusals reach the model with their type. Anything else is a crash, of which it sees none."""

    @functools.wraps(work)
    def call(*args: P.args, **kwargs: P.kwargs) -> Answer:
        try:
            return work(*args, **kwargs)
        except TapeError as error:
            raise ToolError(f"{type(error).__name__}: {error}") from error

    return call


def shown(value: Any) -> Any:
    """Return a value of the store as JSON: what holds nothing and what serves the store itself is left out."""
    if isinstance(value, list):
        return [shown(item) for item in value]
    made = {
        name: held
        for name, held in msgspec.to_builtins(value).items()
        if held is not None and name not in _INNER and not (name == "head" and isinstance(held, list))
    }
    if hasattr(value, "stamp"):
        made["recorded_at"] = value.recorded_at.isoformat()
    return made


def _fitting(values: Any) -> Answer:
    """Return as many of the values as an answer has room for, and whether that is all."""
    items: list[Any] = []
    room = _BYTES
    for value in values:
        room -= len(msgspec.json.encode(value))
        if items and room < 0:
            return {"items": items, "truncated": True}
        items.append(shown(value))
    return {"items": items, "truncated": False}


@dataclass(frozen=True)
class Reading:
    """The tools that read. A point is a seq, the name of an anchor or the id of a message; -1 is now."""

    _store: Store

    def list_tapes(
        self, label: str = "", agent: str = "", status: str = "", parent: str = "", limit: int = 20, cursor: str = ""
    ) -> Answer:
        """List tapes, the newest first. Pass the cursor of an answer for the tapes behind it."""
        filters: Any = {"label": label, "agent": agent, "status": status, "parent": parent, "cursor": cursor}
        asked = {name: value for name, value in filters.items() if value}
        page = self._store.list(limit=min(limit, _MOST), **asked)
        return {"items": shown(page.items), "cursor": page.cursor}

    def tape_info(self, tape: str) -> Answer:
        """Tell what is known of a tape: name, owner, labels, status, head, counts, and its family of forks."""
        chat = self._store.get(tape)
        lineage = chat.lineage()
        family = {"ancestors": shown(lineage.ancestors), "descendants": shown(lineage.descendants[:_MOST])}
        return {**shown(chat.info()), **family}

    def search(self, query: str, tape: str = "", role: str = "", limit: int = 20) -> Answer:
        """Find messages by words, on one tape or on all, newest first. A hit's tape and seq go to read_around.

        "Quoted words" must stand together; a trailing * finds all that begins so.
        """
        hits = self._store.search(query, tape=tape or None, role=role or None, limit=min(limit, _MOST))
        return _fitting(hits)

    def read_around(self, tape: str, seq: int, before: int = 5, after: int = 5) -> Answer:
        """Read the entries of a tape around a seq, as they were recorded."""
        chat = self._store.get(tape)
        ahead = min(max(before, 0), _MOST // 2, seq - 1)
        return _fitting(chat.entries(after=seq - 1 - ahead, limit=ahead + 1 + min(max(after, 0), _MOST // 2)))

    def messages(self, tape: str, at: int | str = -1, limit: int = 20, before: str = "") -> Answer:
        """Read the last messages of a tape as they stood at a point, oldest first; before is a message's id."""
        page = self.at(tape, at).messages(limit=min(limit, _MOST), before=before or None, max_bytes=_BYTES)
        return {"items": shown(page.items), "truncated": page.truncated}

    def context(self, tape: str, at: int | str = -1, budget: int = 8_000) -> Answer:
        """Give what a model would be shown of a tape within a budget of tokens: checkpoint, summaries and messages."""
        context = self.at(tape, at).context(budget=budget)
        return {"messages": context.to_openai(), "tokens": context.tokens, "head": context.head, "view": context.view}

    def anchors(self, tape: str, limit: int = 20) -> Answer:
        """List the last checkpoints and handoffs of a tape, newest last: where its context starts, and with what."""
        return _fitting(self._store.get(tape).anchors(limit=min(limit, _MOST)))

    def diff(self, tape: str, a: int | str, b: int | str = -1, other: str = "") -> Answer:
        """Tell what changed from one point of a tape to another, or to a point of another tape, such as a fork."""
        changes = self._store.get(tape).diff(self.at(tape, a), self.at(other or tape, b))
        text = str(changes)
        return {"text": text[:_BYTES], "truncated": len(text) > _BYTES, "changed": bool(changes)}

    def at(self, tape: str, point: int | str) -> Snapshot:
        """Return a tape as of a point; -1 is now."""
        chat = self._store.get(tape)
        if isinstance(point, str) and re.fullmatch("-1|[0-9]{1,18}", point):
            # Models write numbers as text, too.
            point = int(point)
        return chat if point == -1 else chat.at(point)


class Writing(Reading):
    """The tools that write, too. With the key of an earlier call the same call writes nothing."""

    def append(
        self, tape: str, content: str, role: str = "user", fields: Fields = None, key: str = "", expected_head: int = -1
    ) -> Answer:
        """Append a message to a tape, which is made if it is not there. Further fields of the message go in fields."""
        message = {"role": role, "content": content, **(fields or {})}
        return shown(self._store.tape(tape).append(message, **_options(key, expected_head)))

    def fork(self, tape: str, id: str = "", at: int | str = -1, name: str = "", key: str = "") -> Answer:
        """Fork a tape at a point: a new tape that inherits all before it. Nothing is copied, nothing changes."""
        point = None if at == -1 else at
        fork = self._store.get(tape).fork(id or None, at=point, name=name or None, **_options(key))
        return {"tape": fork.id, **shown(fork.info())}

    def handoff(
        self,
        tape: str,
        name: str,
        summary: str,
        next_steps: Names = None,
        phase: str = "",
        key: str = "",
        expected_head: int = -1,
    ) -> Answer:
        """Set a checkpoint: what was done and what comes next. Contexts start behind it; nothing is removed."""
        said: Any = {"summary": summary, "next_steps": next_steps or (), "phase": phase or None}
        return shown(self._store.get(tape).handoff(name, **said, **_options(key, expected_head)))

    def label(self, tape: str, add: Names = None, remove: Names = None, key: str = "") -> Answer:
        """Put labels on a tape and take others off it."""
        return shown(self._store.get(tape).label(*(add or ()), remove=remove or (), **_options(key)))

    def retract(self, tape: str, message_ids: list[str], reason: str = "", key: str = "") -> Answer:
        """Take messages out of a tape's view. History keeps them; they are no longer read, searched or shown."""
        return shown(self._store.get(tape).retract(*message_ids, reason=reason or None, **_options(key)))


def _options(key: str, expected_head: int = -1) -> Any:
    return {"actor": _ACTOR, "key": key or None, "expected_head": None if expected_head == -1 else expected_head}
