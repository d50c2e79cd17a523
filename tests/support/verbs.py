"""Every way to write to a tape, one row each, for tests that hold for all of them.

A method of ``Tape`` that takes ``expected_head`` is a write and must have a row here: ``test_surface`` sees to it.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest
from msgspec import Struct

import tape
from tape.handles.options import call_of

__all__ = ["VERBS", "Verb", "each_keyed_verb", "each_verb", "prepare"]


_numbers = itertools.count(1)


def prepare(store: tape.Store) -> tape.Tape:
    """Return a new tape with two messages, a retracted third, an anchor, and a fork that has something to merge."""
    chat = store.create(f"chat-{next(_numbers)}", messages=[_say("m1", "user", "one"), _say("m2", "assistant", "two")])
    chat.append(_say("m3", "user", "three"))
    chat.retract("m3")
    chat.anchor("start")
    child = chat.fork(f"{chat.id}/child")
    child.append(_say("c1", "assistant", "from the child"))
    return chat


def _say(id: str, role: str, content: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "content": content}


def _loaded(chat: Any, document: str) -> Any:
    """Load a document as a store does that is opened with its provider."""
    return chat._load(call_of(chat.id), "skills", document, "first", None)


class Verb(Struct, frozen=True):
    """A write: how it is called, and how with other content under the same key."""

    name: str
    """The method's name, and what sets this row apart from others of the same method."""
    call: Callable[..., Any]
    other: Callable[..., Any] | None = None
    """The same write with other content, or None where its content is nothing but its kind."""
    before: Callable[[tape.Tape], Any] | None = None
    """What has to be written first."""
    on_child: bool = False
    """Whether it is a write to the fork and not to its parent."""
    changes_view: bool = True
    keyed: bool = True
    """Whether it returns a receipt, which tells what its key found."""
    entries: int = 1
    """How many entries it writes to the tape."""

    @property
    def method(self) -> str:
        """The name of the method."""
        return self.name.split()[0]

    def start(self, store: tape.Store) -> tape.Tape:
        """Make a tape to which the write is possible."""
        chat = prepare(store)
        target = store.get(f"{chat.id}/child") if self.on_child else chat
        if self.before is not None:
            self.before(target)
        return target


VERBS = [
    Verb(
        "append",
        lambda t, **o: t.append(_say("n", "user", "new"), **o),
        lambda t, **o: t.append(_say("n", "user", "other"), **o),
    ),
    Verb(
        "append behind a parent",
        lambda t, **o: t.append({"role": "user", "content": "new"}, parent="m1", **o),
        lambda t, **o: t.append({"role": "user", "content": "new"}, parent="m2", **o),
    ),
    Verb(
        "append of a tool result",
        lambda t, **o: t.append({"role": "tool", "tool_call_id": "c9", "content": "r"}, **o),
        lambda t, **o: t.append({"role": "tool", "tool_call_id": "c9", "content": "s"}, **o),
        before=lambda t: t.append({"role": "assistant", "content": None, "tool_calls": [{"id": "c9"}]}),
    ),
    Verb(
        "extend",
        lambda t, **o: t.extend([_say("n", "user", "new"), _say("o", "user", "newer")], **o),
        lambda t, **o: t.extend([_say("n", "user", "new"), _say("o", "user", "other")], **o),
        entries=2,
    ),
    Verb(
        "upsert of a new message",
        lambda t, **o: t.upsert(_say("n", "user", "new"), **o),
        lambda t, **o: t.upsert(_say("n", "user", "other"), **o),
    ),
    Verb(
        "upsert of an old message",
        lambda t, **o: t.upsert(_say("m1", "user", "new"), **o),
        lambda t, **o: t.upsert(_say("m1", "user", "other"), **o),
    ),
    Verb(
        "revise",
        lambda t, **o: t.revise("m1", content="new", **o),
        lambda t, **o: t.revise("m1", content="other", **o),
    ),
    Verb(
        "revise as a whole",
        lambda t, **o: t.revise("m1", _say("m1", "user", "new"), **o),
        lambda t, **o: t.revise("m2", _say("m2", "assistant", "new"), **o),
    ),
    Verb("retract", lambda t, **o: t.retract("m2", **o), lambda t, **o: t.retract("m2", reason="other", **o)),
    Verb("restore", lambda t, **o: t.restore("m3", **o), lambda t, **o: t.restore("m2", **o)),
    Verb(
        "restore of a clear",
        lambda t, **o: t.restore(**o),
        lambda t, **o: t.restore("m1", **o),
        before=lambda t: t.clear(),
    ),
    Verb("clear", lambda t, **o: t.clear(**o), lambda t, **o: t.clear("other", **o)),
    Verb("switch to no message", lambda t, **o: t.switch(None, **o), lambda t, **o: t.switch("m1", **o)),
    Verb("switch", lambda t, **o: t.switch("m1", **o), lambda t, **o: t.switch("m2", **o)),
    Verb(
        "replace_history",
        lambda t, **o: t.replace_history([_say("m1", "user", "new"), _say("n", "user", "newer")], **o),
        lambda t, **o: t.replace_history([_say("m1", "user", "new")], **o),
        entries=3,
    ),
    Verb("anchor", lambda t, **o: t.anchor("a", {"n": 1}, **o), lambda t, **o: t.anchor("a", {"n": 2}, **o)),
    Verb(
        "handoff",
        lambda t, **o: t.handoff("h", summary="done", next_steps=["go"], source_ids=["m1"], **o),
        lambda t, **o: t.handoff("h", summary="other", **o),
    ),
    Verb(
        "event",
        lambda t, **o: t.event("score", {"n": 1}, **o),
        lambda t, **o: t.event("score", {"n": 1.0}, **o),
        changes_view=False,
    ),
    Verb(
        "request",
        lambda t, **o: t.request("approve", {"n": 1}, seconds=60, **o),
        lambda t, **o: t.request("approve", {"n": 2}, seconds=60, **o),
        changes_view=False,
    ),
    Verb(
        "resolve",
        lambda t, **o: t.resolve("ask", "yes", **o),
        lambda t, **o: t.resolve("ask", "no", **o),
        before=lambda t: t.request("approve", key="ask"),
        changes_view=False,
    ),
    Verb(
        "withdraw",
        lambda t, **o: t.withdraw("ask", **o),
        lambda t, **o: t.withdraw("ask", "other", **o),
        before=lambda t: t.request("approve", key="ask"),
        changes_view=False,
    ),
    Verb("patch", lambda t, **o: t.patch("s", {"a": 1}, **o), lambda t, **o: t.patch("s", {"a": None}, **o)),
    Verb("put", lambda t, **o: t.put("s", [None], **o), lambda t, **o: t.put("s", None, **o)),
    Verb(
        "set_block",
        lambda t, **o: t.set_block("persona", "kind", max_tokens=50, **o),
        lambda t, **o: t.set_block("persona", "rude", max_tokens=50, **o),
    ),
    Verb(
        "append_block",
        lambda t, **o: t.append_block("todo", "more", **o),
        lambda t, **o: t.append_block("todo", "other", **o),
        before=lambda t: t.set_block("todo", "first"),
    ),
    Verb(
        "remove_block",
        lambda t, **o: t.remove_block("todo", **o),
        lambda t, **o: t.remove_block("memo", **o),
        before=lambda t: (t.set_block("todo", "first"), t.set_block("memo", "first")),
    ),
    Verb(
        "unload_block",
        lambda t, **o: t.unload_block("skills", "pdf", **o),
        lambda t, **o: t.unload_block("skills", "mail", **o),
        before=lambda t: (_loaded(t, "pdf"), _loaded(t, "mail")),
    ),
    Verb("freeze_prompt", lambda t, **o: t.freeze_prompt(**o), keyed=False, before=lambda t: t.set_block("a", "b")),
    Verb("refresh_prompt", lambda t, **o: t.refresh_prompt(**o), keyed=False, before=lambda t: t.freeze_prompt()),
    Verb(
        "record_usage",
        lambda t, **o: t.record_usage(input_tokens=3, cost=7, model="m", **o),
        lambda t, **o: t.record_usage(input_tokens=4, cost=7, model="m", **o),
        changes_view=False,
    ),
    Verb(
        "set_summary",
        lambda t, **o: t.set_summary("in short", first="n1", last="n2", **o),
        lambda t, **o: t.set_summary("other", first="n1", last="n2", **o),
        before=lambda t: t.extend([_say("n1", "user", "1"), _say("n2", "assistant", "2"), _say("n3", "user", "3")]),
    ),
    Verb("rename", lambda t, **o: t.rename("n", **o), lambda t, **o: t.rename(None, **o), changes_view=False),
    Verb(
        "label",
        lambda t, **o: t.label("a", "b", **o),
        lambda t, **o: t.label("a", remove=["b"], **o),
        changes_view=False,
    ),
    Verb("unhide", lambda t, **o: t.unhide(**o), lambda t, **o: t.hide(**o), changes_view=False),
    Verb("complete", lambda t, **o: t.complete(**o), lambda t, **o: t.abandon(**o), changes_view=False),
    Verb("abandon", lambda t, **o: t.abandon("why", **o), lambda t, **o: t.abandon(**o), changes_view=False),
    Verb("end", lambda t, **o: t.end("over", **o), lambda t, **o: t.end("other", **o), changes_view=False),
    Verb("reopen", lambda t, **o: t.reopen(**o), lambda t, **o: t.complete(**o), changes_view=False),
    Verb("fork", lambda t, **o: t.fork(f"{t.id}/young", at=2, **o), changes_view=False, keyed=False),
    Verb("merge", lambda t, **o: t.merge(f"{t.id}/child", **o), keyed=False, entries=2),
    Verb(
        "merge as one message", lambda t, **o: t.merge(f"{t.id}/child", strategy="squash", **o), keyed=False, entries=2
    ),
    Verb(
        "discard",
        lambda t, **o: t.discard("no use", **o),
        lambda t, **o: t.discard("other", **o),
        on_child=True,
        changes_view=False,
    ),
]

each_verb = pytest.mark.parametrize("verb", VERBS, ids=lambda verb: verb.name.replace(" ", "-"))
"""Run a test once per write."""

each_keyed_verb = pytest.mark.parametrize(
    "verb", [verb for verb in VERBS if verb.keyed], ids=lambda verb: verb.name.replace(" ", "-")
)
"""Run a test once per write that takes a key."""
