"""Tools for models over a whole store: to find, read and compare tapes, and if that is allowed to write to them.

Each is a plain function with typed arguments and a docstring, so that any framework takes it for a tool as it is
(``tool.run``). Its answer is JSON. A ``Toolset`` gives the answer as text and never raises, as with the tools of one
tape; ``tape mcp`` serves the same functions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from tape.core import strict
from tape.errors import InvalidEntry
from tape.handles.snapshot import Snapshot
from tape.tools import Tool, Toolset, schema, search_tool

if TYPE_CHECKING:
    from tape.store import Store

__all__ = ["store_tools"]

_MOST_ITEMS, _MOST_MESSAGES = 200, 1_000
"""How many an answer has at most, if their bytes have room in it."""
_INFO = 500
"""About how many bytes are said of a tape in a list."""
_INNER = ("stamp", "occurred", "position", "version", "tokens")

Answer = dict[str, Any]
Fields = dict[str, Any] | None
Names = list[str] | None


def store_tools(store: Store, scope: str, actor: str | None, room: int) -> Toolset:
    """Return the tools of a scope: "search", "read" for all that read, or "write" for all."""
    strict.one_of(scope, ("search", "read", "write"), "scope")
    if scope == "search":
        return Toolset([search_tool(store.search)])
    named = None if actor is None else strict.identifier(actor, "actor")
    tools = _Tools(store, named, strict.limit(room, "room"))
    effects = _READING if scope == "read" else {**_READING, **_WRITING}
    return Toolset([_tool(getattr(tools, name), effect) for name, effect in effects.items()])


_READING = dict.fromkeys(
    ("list_tapes", "tape_info", "search", "read_around", "messages", "context", "anchors", "diff"), "reads"
)
_WRITING = {"append": "adds", "fork": "adds", "handoff": "adds", "label": "sets", "retract": "takes"}


def _tool(function: Callable[..., Answer], effect: str) -> Tool:
    """Return a tool that is called as a function is."""
    kinds, parameters = get_type_hints(function), inspect.signature(function).parameters.values()
    required = tuple(each.name for each in parameters if each.default is each.empty)
    properties = {each.name: msgspec.json.schema(kinds[each.name]) for each in parameters}
    described = " ".join((inspect.getdoc(function) or "").split())
    return Tool(function.__name__, described, schema(required, **properties), function, effect)


def _shown(value: Any) -> Answer:
    """Return a record of the store as JSON: what holds nothing and what serves the store itself is left out."""
    shown: Answer = {
        name: held
        for name, held in msgspec.to_builtins(value).items()
        if held is not None and name not in _INNER and not (name == "head" and isinstance(held, list))
    }
    if hasattr(value, "stamp"):
        shown["recorded_at"] = value.recorded_at.isoformat()
    return shown


def _fitting(values: Any, room: int) -> Answer:
    """Return as many of the values as an answer has room for, and whether that is all."""
    items: list[Any] = []
    for value in values:
        room -= len(msgspec.json.encode(value))
        if items and room < 0:
            return {"items": items, "truncated": True}
        items.append(_shown(value))
    return {"items": items, "truncated": False}


def _point(point: int | str) -> int | str:
    """Return a point; models write numbers as text, too."""
    return int(point) if isinstance(point, str) and re.fullmatch("-1|[0-9]{1,18}", point) else point


class _Tools:
    """The functions. A point is a seq, the name of an anchor or the id of a message; -1 is now."""

    def __init__(self, store: Store, actor: str | None, room: int) -> None:
        self._store, self._actor, self._room = store, actor, room

    def list_tapes(
        self, label: str = "", agent: str = "", status: str = "", parent: str = "", limit: int = 20, cursor: str = ""
    ) -> Answer:
        """List tapes, the newest first. Pass the cursor of an answer for the tapes behind it."""
        filters: Any = {"label": label, "agent": agent, "status": status, "parent": parent, "cursor": cursor}
        asked = {name: value for name, value in filters.items() if value}
        page = self._store.list(limit=min(limit, _MOST_ITEMS, self._room // _INFO or 1), **asked)
        return {"items": [_shown(item) for item in page.items], "cursor": page.cursor}

    def tape_info(self, tape: str, at: int | str = -1) -> Answer:
        """Tell what is known of a tape: name, owner, labels, status, head, counts, and its family of forks."""
        view = self._at(tape, at)
        lineage = self._store.get(tape).lineage()
        family: dict[str, Any] = {"ancestors": lineage.ancestors, "descendants": lineage.descendants[:_MOST_ITEMS]}
        return {**_shown(view.info()), **{name: [_shown(item) for item in items] for name, items in family.items()}}

    def search(self, query: str, tape: str = "", role: str = "", limit: int = 20) -> Answer:
        """Find messages by words, on one tape or on all, newest first. A hit's tape and seq go to read_around.

        "Quoted words" must stand together; a trailing * finds all that begins so.
        """
        hits = self._store.search(query, tape=tape or None, role=role or None, limit=min(limit, _MOST_ITEMS))
        return _fitting(hits, self._room)

    def read_around(self, tape: str, seq: int, before: int = 5, after: int = 5) -> Answer:
        """Read the entries of a tape around a seq, as they were recorded."""
        ahead = min(max(before, 0), _MOST_ITEMS // 2, strict.limit(seq, "seq") - 1)
        behind = min(max(after, 0), _MOST_ITEMS // 2)
        return _fitting(self._store.get(tape).entries(after=seq - 1 - ahead, limit=ahead + 1 + behind), self._room)

    def messages(self, tape: str, at: int | str = -1, limit: int = 20, before: str = "") -> Answer:
        """Read the last messages of a tape as they stood at a point, oldest first; before is a message's id."""
        page = self._at(tape, at).messages(
            limit=min(limit, _MOST_MESSAGES), before=before or None, max_bytes=self._room
        )
        return {"items": [_shown(item) for item in page.items], "truncated": page.truncated}

    def context(self, tape: str, at: int | str = -1, budget: int = 8_000) -> Answer:
        """Give what a model would be shown of a tape within a budget of tokens: checkpoint, summaries and messages."""
        context = self._at(tape, at).context(budget=budget)
        return {"messages": context.to_openai(), "tokens": context.tokens, "head": context.head, "view": context.view}

    def anchors(self, tape: str, limit: int = 20) -> Answer:
        """List the last checkpoints and handoffs of a tape, newest last: where its context starts, and with what."""
        return _fitting(self._store.get(tape).anchors(limit=min(limit, _MOST_ITEMS)), self._room)

    def diff(self, tape: str, a: int | str, b: int | str = -1, other: str = "") -> Answer:
        """Tell what changed from one point of a tape to another, or to a point of another tape, such as a fork."""
        changes = self._store.get(tape).diff(self._at(tape, a), self._at(other or tape, b))
        text = str(changes)
        return {"text": text[: self._room], "truncated": len(text) > self._room, "changed": bool(changes)}

    def _at(self, tape: str, point: int | str) -> Snapshot:
        """Return a tape as of a point; -1 is now."""
        chat, at = self._store.get(tape), _point(point)
        return chat if at == -1 else chat.at(at)

    # With the key of an earlier call the same call of one that writes does nothing.

    def append(
        self, tape: str, content: str, role: str = "user", fields: Fields = None, key: str = "", expected_head: int = -1
    ) -> Answer:
        """Append a message to a tape, which is made if it is not there. Further fields of the message go in fields."""
        if fields and not fields.keys().isdisjoint(("role", "content")):
            raise InvalidEntry("fields", "are those besides role and content")
        message = {"role": role, "content": content, **(fields or {})}
        return _shown(self._store.tape(tape).append(message, **self._options(key, expected_head)))

    def fork(self, tape: str, id: str = "", at: int | str = -1, name: str = "", key: str = "") -> Answer:
        """Fork a tape at a point: a new tape that inherits all before it. Nothing is copied, nothing changes."""
        point = _point(at)
        fork = self._store.get(tape).fork(
            id or None, at=None if point == -1 else point, name=name or None, **self._options(key)
        )
        return {"tape": fork.id, **_shown(fork.info())}

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
        return _shown(self._store.get(tape).handoff(name, **said, **self._options(key, expected_head)))

    def label(self, tape: str, add: Names = None, remove: Names = None, key: str = "") -> Answer:
        """Put labels on a tape and take others off it."""
        return _shown(self._store.get(tape).label(*(add or ()), remove=remove or (), **self._options(key)))

    def retract(self, tape: str, message_ids: list[str], reason: str = "", key: str = "") -> Answer:
        """Take messages out of a tape's view. History keeps them; they are no longer read, searched or shown."""
        return _shown(self._store.get(tape).retract(*message_ids, reason=reason or None, **self._options(key)))

    def _options(self, key: str, expected_head: int = -1) -> Any:
        head = None if expected_head == -1 else expected_head
        return {"actor": self._actor, "key": key or None, "expected_head": head}
