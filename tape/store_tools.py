"""Tools for models over a whole store: to find, read and compare tapes, and if that is allowed to write to them.

Each is a plain function with typed arguments and a docstring, so that any framework takes it for a tool as it is
(``tool.run``). Its answer is JSON. A ``Toolset`` gives the answer as text and never raises, as with the tools of one
tape; ``tape mcp`` serves the same functions.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, get_type_hints

import msgspec

from tape.core import strict
from tape.core.records import Entry
from tape.errors import InvalidEntry
from tape.handles.snapshot import Snapshot
from tape.tools import Tool, Toolset, cut, schema, search_tool

if TYPE_CHECKING:
    from tape.store import Store

__all__ = ["store_tools"]

_MOST_ITEMS, _MOST_MESSAGES = 200, 1_000
"""How many an answer has at most, if their bytes have room in it."""
_INFO = 800
"""About how many bytes are said of a tape in a list."""
_SHORTEST = 300
"""Characters of a text that are never cut, so that ids and names stay whole."""
_INNER = ("stamp", "occurred", "position", "version", "tokens")

Answer = dict[str, Any]
Fields = dict[str, Any] | None
Names = list[str] | None


def store_tools(store: Store, scope: str, actor: str | None, room: int) -> Toolset:
    """Return the tools of a scope: "search", "read" for all that read, or "write" for all that the store can run."""
    strict.one_of(scope, ("search", "read", "write"), "scope")
    if scope == "search":
        return Toolset([search_tool(store.search)])
    named = None if actor is None else strict.identifier(actor, "actor")
    tools = _Tools(store, named, strict.limit(room, "room"))
    effects = _READING if scope == "read" or store.read_only else {**_READING, **_WRITING}
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


class _Room:
    """The bytes that an answer has left, and whether something had to be left out of it."""

    def __init__(self, left: int) -> None:
        self.left, self.truncated, self._empty = left, False, True

    def take(self, value: Answer) -> Answer | None:
        """Return a value if there is room for it. The first is there always, with its long texts cut if need be."""
        size = _size(value) + 1
        if size > self.left:
            self.truncated = True
            if not self._empty:
                return None
            value = _shortened(value, self.left)
        self._empty = False
        self.left -= size
        return value

    def fill(self, values: Iterable[Answer]) -> list[Answer]:
        """Return the values for which there is room, up to the first for which there is none."""
        taken = []
        for value in values:
            if (fitting := self.take(value)) is None:
                break
            taken.append(fitting)
        return taken


def _size(value: Any) -> int:
    return len(msgspec.json.encode(value))


def _shortened(value: Answer, room: int) -> Answer:
    """Return an object with as much of its long texts as there is room for, each with a mark where it was cut."""
    if _size(value) <= room:
        return value
    made: Answer = _with_texts(value, _SHORTEST)
    most, beyond = _SHORTEST, room
    while most + 1 < beyond and _size(made) <= room:
        middle = (most + beyond) // 2
        longer = _with_texts(value, middle)
        if _size(longer) <= room:
            made, most = longer, middle
        else:
            beyond = middle
    # Many short texts take as much room as a long one.
    for name in sorted(made, key=lambda name: _size(made[name]), reverse=True):
        over, size = _size(made) - room, _size(made[name])
        if over <= 0 or size <= _SHORTEST:
            break
        made[name] = cut(msgspec.json.encode(made[name]).decode(), max(size - over, 2 * _SHORTEST) // 2)
    return made


def _with_texts(value: Any, most: int) -> Any:
    """Return a JSON value with its texts cut to so many characters."""
    if isinstance(value, str):
        return cut(value, most)
    if isinstance(value, dict):
        return {name: _with_texts(item, most) for name, item in value.items()}
    return [_with_texts(item, most) for item in value] if isinstance(value, list) else value


def _evenly(values: list[Answer], room: int) -> tuple[list[Answer], bool]:
    """Return all values, the largest shortened to the same size if there is no room for all; and whether any was."""
    sizes = sorted(_size(value) + 1 for value in values)
    for place, size in enumerate(sizes):
        share = room // (len(sizes) - place)
        if size > share:
            return [_shortened(value, share) for value in values], True
        room -= size
    return values, False


def _point(point: int | str) -> int | str:
    """Return a point; models write numbers as text, too."""
    return int(point) if isinstance(point, str) and re.fullmatch("-1|[0-9]{1,18}", point) else point


def _place(tape: str, written: int | str) -> tuple[str, int] | None:
    """Return the tape and the seq of an address as models write it, if there is one: a seq, or tape:seq."""
    if written == "":
        return None
    name, _, seq = str(written).rpartition(":")
    if not re.fullmatch("[0-9]{1,18}", seq):
        raise InvalidEntry("before", "must be the seq of an anchor, or tape:seq of an inherited anchor")
    return name or tape, int(seq)


class _Tools:
    """The functions. A point is a seq, the name of an anchor or the id of a message; -1 is now."""

    def __init__(self, store: Store, actor: str | None, room: int) -> None:
        self._store, self._actor, self._room = store, actor, room

    def list_tapes(
        self, label: str = "", agent: str = "", status: str = "", parent: str = "", limit: int = 20, cursor: str = ""
    ) -> Answer:
        """List tapes, newest first. Pass the cursor of an answer to get the next page."""
        filters: Any = {"label": label, "agent": agent, "status": status, "parent": parent, "cursor": cursor}
        asked = {name: value for name, value in filters.items() if value}
        page = self._store.list(limit=min(limit, _MOST_ITEMS, self._room // _INFO or 1), **asked)
        # None is left out, since the cursor goes on behind the last.
        items, shortened = _evenly([_shown(item) for item in page.items], self._room)
        return {"items": items, "cursor": page.cursor, "truncated": shortened or page.cursor is not None}

    def tape_info(self, tape: str, at: int | str = -1) -> Answer:
        """Describe a tape: name, owner, labels, status, head, counts, and its family of forks."""
        view = self._at(tape, at)
        lineage = self._store.get(tape).lineage()
        descendants = lineage.descendants[:_MOST_ITEMS]
        family = [[_shown(item) for item in items] for items in (lineage.ancestors, descendants)]
        room = _Room(self._room)
        info = _shortened(whole := _shown(view.info()), max(self._room - _size(family), self._room // 2))
        room.take(info)
        ancestors, forks = (room.fill(items) for items in family)
        truncated = room.truncated or info != whole or len(descendants) < len(lineage.descendants)
        return {**info, "ancestors": ancestors, "descendants": forks, "truncated": truncated}

    def search(self, query: str, tape: str = "", role: str = "", limit: int = 20) -> Answer:
        """Search messages by words, on one tape or on all, newest first. Pass a hit's tape and seq to read_around.

        Use "quotes" for a phrase and a trailing * for a prefix.
        """
        hits = self._store.search(query, tape=tape or None, role=role or None, limit=min(limit, _MOST_ITEMS))
        return self._answer(_shown(hit) for hit in hits)

    def read_around(self, tape: str, seq: int, before: int = 5, after: int = 5) -> Answer:
        """Read the entry at a seq and the entries around it, as recorded. A short answer holds the nearest ones."""
        chat = self._store.get(tape)
        room, asked = _Room(self._room), chat.entry(seq=strict.limit(seq, "seq"))
        items = room.fill([_shown(asked)])
        sides: list[tuple[int, Iterator[Entry]]] = []
        if (ahead := min(before, _MOST_ITEMS // 2)) > 0:
            sides.append((0, iter(chat.entries(before=seq, reverse=True, limit=ahead))))
        if (behind := min(after, _MOST_ITEMS // 2)) > 0:
            sides.append((1, iter(chat.entries(after=seq, limit=behind))))
        while sides:
            for side in list(sides):
                place, entries = side
                entry = next(entries, None)
                if entry is None or (shown := room.take(_shown(entry))) is None:
                    sides.remove(side)
                else:
                    items.insert(place * len(items), shown)
        return {"items": items, "truncated": room.truncated}

    def messages(self, tape: str, at: int | str = -1, limit: int = 20, before: str = "") -> Answer:
        """Read the last messages of a tape as of a point, oldest first. Pass a message id as before to page back."""
        page = self._at(tape, at).messages(
            limit=min(limit, _MOST_MESSAGES), before=before or None, max_bytes=self._room
        )
        return self._answer((_shown(item) for item in reversed(page.items)), last=True, more=page.truncated)

    def context(self, tape: str, at: int | str = -1, budget: int = 8_000) -> Answer:
        """Return a tape's context within a token budget, as a model would get it: checkpoint, summaries and messages.

        If that is too long for an answer, only its last messages are returned.
        """
        context = self._at(tape, at).context(budget=budget)
        room = _Room(self._room)
        messages = room.fill(reversed(context.to_openai()))[::-1]
        about: Answer = {"tokens": context.tokens, "head": context.head, "view": context.view}
        return {"messages": messages, **about, "truncated": room.truncated}

    def anchors(self, tape: str, limit: int = 20, before: int | str = "") -> Answer:
        """List the latest checkpoints and handoffs of a tape, newest last. Its context starts with the newest one.

        To page back, pass the seq of the first one as before, or tape:seq if the tape inherits it.
        """
        most = min(strict.limit(limit), _MOST_ITEMS)
        newest_first = self._store.get(tape).anchors(limit=most + 1, before=_place(tape, before))[::-1]
        shown = (_shown(anchor) for anchor in newest_first[:most])
        return self._answer(shown, last=True, more=len(newest_first) > most)

    def diff(self, tape: str, a: int | str, b: int | str = -1, other: str = "") -> Answer:
        """Show what changed from one point of a tape to another, or to a point of another tape, such as a fork."""
        changes = self._store.get(tape).diff(self._at(tape, a), self._at(other or tape, b))
        text = str(changes)
        shown = _shortened({"text": text}, self._room)
        return {**shown, "truncated": shown["text"] != text, "changed": bool(changes)}

    def _answer(self, items: Iterable[Answer], *, last: bool = False, more: bool = False) -> Answer:
        """Return the items that have room, and whether there are more; the last ones come newest first."""
        room = _Room(self._room)
        taken = room.fill(items)
        return {"items": taken[::-1] if last else taken, "truncated": room.truncated or more}

    def _at(self, tape: str, point: int | str) -> Snapshot:
        """Return a tape as of a point; -1 is now."""
        chat, at = self._store.get(tape), _point(point)
        return chat if at == -1 else chat.at(at)

    # With the key of an earlier call the same call of one that writes does nothing.

    def append(
        self, tape: str, content: str, role: str = "user", fields: Fields = None, key: str = "", expected_head: int = -1
    ) -> Answer:
        """Append a message to a tape; a missing tape is created. Put other message fields into fields."""
        if fields and not fields.keys().isdisjoint(("role", "content")):
            raise InvalidEntry("fields", "must not contain role or content; pass those as arguments")
        message = {"role": role, "content": content, **(fields or {})}
        return _shown(self._store.tape(tape).append(message, **self._options(key, expected_head)))

    def fork(self, tape: str, id: str = "", at: int | str = -1, name: str = "", key: str = "") -> Answer:
        """Fork a tape at a point: create a tape that inherits its history up to there. The original does not change."""
        point = _point(at)
        fork = self._store.get(tape).fork(
            id or None, at=None if point == -1 else point, name=name or None, **self._options(key)
        )
        return _shortened({"tape": fork.id, **_shown(fork.info())}, self._room)

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
        """Record a handoff: what was done and what comes next. Contexts start after it; nothing is deleted."""
        said: Any = {"summary": summary, "next_steps": next_steps or (), "phase": phase or None}
        return _shown(self._store.get(tape).handoff(name, **said, **self._options(key, expected_head)))

    def label(self, tape: str, add: Names = None, remove: Names = None, key: str = "") -> Answer:
        """Add labels to a tape and remove others."""
        return _shown(self._store.get(tape).label(*(add or ()), remove=remove or (), **self._options(key)))

    def retract(self, tape: str, message_ids: list[str], reason: str = "", key: str = "") -> Answer:
        """Remove messages from a tape's view. The history keeps them, but reads, searches and contexts skip them."""
        return _shown(self._store.get(tape).retract(*message_ids, reason=reason or None, **self._options(key)))

    def _options(self, key: str, expected_head: int = -1) -> Any:
        head = None if expected_head == -1 else expected_head
        return {"actor": self._actor, "key": key or None, "expected_head": head}
