"""``TapeStore``: the long-term memory of LangGraph on tapes, one tape per namespace, an item a message."""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
from langgraph.store import base
from langgraph.store.base.embed import get_text_at_path

import tape
from tape.integrations.histories import readable, tape_id
from tape.integrations.opening import Adapter, awaited

__all__ = ["TapeStore"]

_LABEL = "langgraph-store"
_ALL = 10_000
_NAMES = {"$eq": "eq", "$ne": "ne", "$gt": "gt", "$gte": "ge", "$lt": "lt", "$lte": "le"}


class TapeStore(Adapter, base.BaseStore):
    """Keeps the items of a graph's memory on tapes; for sync and async graphs alike.

    ``store`` is a ``tape.Store``, a ``tape.AsyncStore`` or a URL. A search with a query finds the items that have any
    of its words, those with most of them first. Values are JSON; what was overwritten or deleted stays on the tape.
    """

    def batch(self, ops: Iterable[base.Op]) -> list[base.Result]:
        """Run operations: what is read is as it was before, and what is put is there as a whole."""
        ops = list(ops)
        results = [self._read(op) for op in ops]
        puts = {(op.namespace, op.key): op for op in ops if isinstance(op, base.PutOp)}

        def put(store: tape.Store) -> None:
            for op in puts.values():
                _put(store, op)

        if puts:
            self._connected.store.transaction(put)
        return results

    abatch = awaited(batch)

    def _read(self, op: base.Op) -> base.Result:
        if isinstance(op, base.GetOp):
            message = _tape(self._connected.store, op.namespace).find(_id(op.key))
            return None if message is None else base.Item(**_fields(op.namespace, message))
        if isinstance(op, base.SearchOp):
            return self._search(op)
        if isinstance(op, base.ListNamespacesOp):
            wanted = op.match_conditions or ()
            namespaces = (each for each in self._namespaces() if all(_fits(each, condition) for condition in wanted))
            return sorted({each[: op.max_depth] for each in namespaces})[op.offset : op.offset + op.limit]
        return None

    def _search(self, op: base.SearchOp) -> list[base.SearchItem]:
        prefix, tests = tuple(op.namespace_prefix), (op.filter or {}).items()
        within = (namespace for namespace in self._namespaces() if namespace[: len(prefix)] == prefix)
        items = (item for namespace in within for item in self._hits(namespace, op.query))
        hits = [item for item in items if all(_meets(item.value.get(name), test) for name, test in tests)]
        hits.sort(key=lambda item: (item.score or 0, item.updated_at), reverse=True)
        return hits[op.offset : op.offset + op.limit]

    def _hits(self, namespace: tuple[str, ...], query: str | None) -> Iterator[base.SearchItem]:
        """Yield the items of a namespace, or those that have words of a query, with how many of them they have."""
        chat = _tape(self._connected.store, namespace)
        if not query:
            yield from (base.SearchItem(**_fields(namespace, message)) for message in chat.messages())
            return
        words = set(query.split())
        having = Counter(hit.message_id for word in words for hit in chat.search(word, limit=_ALL))
        for message_id, count in having.items():
            if (message := chat.find(message_id)) is not None:
                yield base.SearchItem(**_fields(namespace, message), score=count / len(words))

    def _namespaces(self) -> Iterator[tuple[str, ...]]:
        """Yield the namespaces that hold something."""
        for info in self._connected.store.tapes(label=_LABEL):
            if info.name and info.message_count:
                # A tape from elsewhere may have the label, and any name.
                with suppress(msgspec.MsgspecError):
                    yield tuple(msgspec.json.decode(info.name, type=list[str]))


def _tape(store: tape.Store, namespace: tuple[str, ...]) -> tape.Tape:
    has_dot = any("." in part for part in namespace)
    text = msgspec.json.encode(namespace).decode() if has_dot else ".".join(namespace)
    # Two owners may have namespaces of one name.
    return store.tape(tape.as_id(f"{_LABEL}:{text}") if store.owner is None else tape_id(store, _LABEL, text))


def _id(key: str) -> str:
    return tape.as_id(key, most=200)


def _put(store: tape.Store, op: base.PutOp) -> None:
    """Put or delete an item: a message that is appended, revised, retracted or brought back."""
    chat, id = _tape(store, op.namespace), _id(op.key)
    live = chat.find(id)
    if op.value is None:
        if live is not None:
            chat.retract(id)
        return
    said: dict[str, Any] = {"role": "memory", "content": op.value}
    meta = {"key": op.key, "created": (live.meta or {})["created"] if live else datetime.now(UTC).isoformat()}
    if op.index is not None:
        # Only what is to be found is text; the value itself is kept beside it.
        texts = [text for path in op.index or () for text in get_text_at_path(op.value, path)]
        said, meta = {**said, "content": "\n".join(texts)}, {**meta, "value": op.value}
    try:
        if live is None:
            chat.restore(id)
        chat.revise(id, said, meta=meta)
    except (tape.UnknownMessage, tape.TapeNotFound):
        if not chat.info().head:
            name = msgspec.json.encode(op.namespace).decode()
            chat = store.create(chat.id, name=name, labels=[_LABEL], reuse=True)
        chat.append(said, id=id, meta=meta)


def _fields(namespace: tuple[str, ...], message: tape.Message) -> dict[str, Any]:
    """Return what an item says. Raises Corrupt for a message that no store of LangGraph wrote."""
    meta = message.meta or {}
    with readable(message.tape, message.seq):
        key, created = str(meta["key"]), datetime.fromisoformat(meta["created"])
    value = meta.get("value", message.content)
    return {
        "namespace": namespace,
        "key": key,
        "value": value,
        "created_at": created,
        "updated_at": message.recorded_at,
    }


def _fits(namespace: tuple[str, ...], condition: base.MatchCondition) -> bool:
    path = condition.path
    parts = namespace[: len(path)] if condition.match_type == "prefix" else namespace[-len(path) :]
    return len(parts) == len(path) and all(want in ("*", part) for want, part in zip(path, parts, strict=True))


def _meets(value: Any, test: Any) -> bool:
    """Whether a value is what a filter asks for: equal, all of its members, or by comparison."""
    if isinstance(test, dict) and any(name.startswith("$") for name in test):
        if unknown := test.keys() - _NAMES.keys():
            raise tape.InvalidEntry(
                "filter", f"has an unknown operator {min(unknown)!r}; use one of {', '.join(_NAMES)}"
            )
        try:
            return all(getattr(operator, _NAMES[name])(value, other) for name, other in test.items())
        except TypeError:
            return False
    if isinstance(test, dict):
        return isinstance(value, dict) and all(_meets(value.get(name), other) for name, other in test.items())
    return bool(value == test)
