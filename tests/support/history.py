"""A history in which everything happens that a tape can hold, for tests that need more than one message.

``write`` is the same on every engine: with a clock and a maker of ids that count, its entries have the same hashes
wherever they are written.
"""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import tape
from tape import new_ids

__all__ = [
    "FORKS",
    "TAPES",
    "branch",
    "counting_clock",
    "counting_ids",
    "describe",
    "write",
    "write_all",
    "write_checked_and_indexed",
]

TAPES = ("chat", "plan", "quiet")
FORKS = ("gone", "helper", "squashed", "under")
_START = 1_700_000_000_000_000


def counting_clock() -> Callable[[], int]:
    """Return a clock that moves by a second whenever it is read, and once runs back."""
    ticks = itertools.count(1)

    def read() -> int:
        tick = next(ticks)
        return _START + (tick - 20 if 30 <= tick < 33 else tick) * 1_000_000

    return read


@contextlib.contextmanager
def counting_ids() -> Iterator[None]:
    """Make ids and keys count and salts equal, so that two runs write the same bytes."""
    numbers = itertools.count(1)

    def next_id() -> str:
        return f"00000000-0000-7000-8000-{next(numbers):012x}"

    salts = mock.patch.object(new_ids, "new_salt", return_value=bytes(16))
    with mock.patch.object(new_ids, "new_id", next_id), salts:
        yield


def _say(id: str, role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"id": id, "role": role, "content": content, **more}


def write(store: tape.Store) -> list[tape.Receipt]:
    """Write two tapes with every verb, branches, tool calls, clears, aliases and anchors, and one with nothing."""
    receipts: list[tape.Receipt] = []
    keep = receipts.append
    chat = store.create(
        "chat",
        name="Trip",
        agent="planner",
        labels=["travel", "東京"],
        meta={"model": "m-1", "source": "web"},
        messages=[_say("s", "system", "Be brief."), _say("u1", "user", "Plan the trip", actor="ann")],
    )
    keep(chat.append(_say("a1", "assistant", "Where to?"), actor="agent", meta={"run": "r1", "tokens": 12}))
    keep(chat.append(role="user", content="Tokyo — 東京 🗼", key="client-7", actor="ann"))
    call = {"id": "c1", "type": "function", "function": {"name": "flights", "arguments": '{"to": "HND"}'}}
    other = {"id": "c2", "type": "function", "function": {"name": "hotels", "arguments": "{}"}}
    keep(chat.append(_say("a2", "assistant", None, tool_calls=[call, other])))
    receipts += chat.extend(
        [
            {"id": "t1", "role": "tool", "tool_call_id": "c1", "content": "3 flights"},
            {"id": "t2", "role": "tool", "tool_call_id": "c2", "content": [{"type": "text", "text": "5 hotels"}]},
            {"role": "assistant", "content": "Three flights, five hotels."},
        ],
        key="batch",
        meta={"run": "r2"},
    )
    keep(chat.revise("a2", _say("a2", "assistant", "Looking.", tool_calls=[other]), actor="agent"))
    keep(chat.revise("u1", content="Plan the trip to Japan"))
    keep(chat.revise("u1", content="Plan the trip"))
    keep(chat.upsert(_say("u2", "user", "And a museum")))
    keep(chat.upsert(_say("u2", "user", "And a museum, please")))
    keep(chat.anchor("dates", {"from": "2026-04-01", "n": 2**70, "none": None}, source_ids=["u1"]))
    keep(chat.append(_say("a3", "assistant", "Done."), parent="u2"))
    keep(chat.append(_say("a3b", "assistant", "Done, differently."), parent="u2"))
    keep(chat.switch("a3"))
    keep(chat.append(_say("u3", "user", "Thanks")))
    keep(chat.retract("t2", "a3b", reason="wrong"))
    keep(chat.restore("a3b"))
    keep(chat.retract("a2"))
    keep(chat.event("score", {"quality": 0.5, "by": "judge"}, key="score-1", actor="judge"))
    anchors = chat.anchors()
    keep(chat.anchor("again", parents=[anchors[0].seq]))
    keep(
        chat.handoff(
            "booking",
            summary="Dates fixed",
            phase="book",
            next_steps=["book hotel"],
            source_ids=["u2"],
            owner="booker",
            state={"city": "東京"},
        )
    )
    keep(chat.append(_say("root2", "user", "From the start"), parent=None))
    keep(chat.clear("new topic"))
    receipts += chat.extend([_say("n1", "user", "New"), _say("n2", "assistant", "topic")])
    keep(chat.restore("u1"))
    keep(chat.clear())
    keep(chat.restore())
    receipts += chat.replace_history([_say("n1", "user", "Rewritten"), _say("z", "assistant", "history")])
    keep(chat.complete(actor="ann"))
    keep(chat.event("closed"))
    keep(chat.reopen())
    keep(chat.append({"id": "i1", "type": "function_call", "call_id": "f1", "name": "x", "arguments": "{}"}))
    keep(chat.append({"id": "i2", "type": "function_call_output", "call_id": "f1", "output": "y"}))

    plan = store.tape("plan")
    keep(plan.append(_say("u1", "user", "The same id on another tape", big=10**30, float=1e-7, empty="")))
    keep(plan.append(_say("tu", "assistant", [{"type": "tool_use", "id": "tu1", "name": "f", "input": {}}])))
    keep(plan.append(_say("tr", "user", [{"type": "tool_result", "tool_use_id": "tu1", "content": "ok"}])))
    keep(plan.retract("tu"))
    keep(plan.abandon("no time"))
    keep(plan.reopen())
    keep(plan.end("over"))
    store.create("quiet", owner="ann")
    return receipts


def branch(store: tape.Store) -> None:
    """Summarise, remember, fork, fork the fork, change what is inherited, merge and discard: what ``write`` leaves out.

    Kept apart from it, because the kept store of the first revision could not hold any of this.
    """
    chat = store.get("chat")
    chat.extend([_say("k1", "user", "One"), _say("k2", "assistant", "Two"), _say("k3", "user", "Three")])
    chat.set_summary("One and two.", first="k1", last="k2")
    chat.revise("k1", content="One, revised")
    chat.put("form", {"city": None})
    chat.patch("form", {"nights": 3})
    chat.set_block("memory", "likes tea", max_tokens=100)
    chat.append_block("memory", "hates rain")
    chat.freeze_prompt()
    chat.record_usage(input_tokens=10, output_tokens=5, cost=7)
    helper = chat.fork("helper", name="hotels")
    helper.retract("k2")
    helper.patch("form", {"nights": 4})
    helper.append_block("memory", "travels light")
    helper.record_usage(input_tokens=1)
    helper.append(_say("h1", "assistant", "Found three."))
    helper.revise("z", content="history, revised in the fork")
    helper.anchor("shortlist", {"hotels": 3})
    helper.patch("flow", {"hotel": "Park"})
    helper.append_block("persona", "Thorough.")
    helper.record_usage(input_tokens=3)
    under = helper.fork("under")
    under.retract("z")
    under.revise("h1", content="Found four.")
    under.restore("z")
    chat.merge(helper)
    helper.append(_say("h2", "assistant", "And a fourth."))
    chat.merge(helper, actor="ann", meta={"run": "r9"})
    squashed = chat.fork("squashed")
    squashed.append(_say("q1", "assistant", "Long work."))
    chat.merge(squashed, strategy="squash", summary="Short result.")
    gone = chat.fork("gone", at="z")
    gone.clear("away with it")
    gone.discard("no use")


def _messages(view: Any) -> list[dict[str, Any]]:
    return [
        {
            "id": message.id,
            "data": message.to_dict(),
            "parent": message.parent,
            "seq": message.seq,
            "revision": message.revision,
        }
        for message in view.messages()
    ]


def write_all(store: tape.Store) -> None:
    """Write the tapes and their forks."""
    write(store)
    branch(store)


def write_checked_and_indexed(store: tape.Store) -> None:
    """Write everything, and leave the traces of labels, a verify and a search, too."""
    write_all(store)
    store.get("chat").label("x")
    store.verify()
    store.search("x")


def describe(store: tape.Store, name: str) -> dict[str, Any]:
    """Return everything that can be read of a tape, as JSON."""
    chat = store.get(name)
    info = chat.info()
    return {
        "info": {
            "name": info.name,
            "owner": info.owner,
            "agent": info.agent,
            "labels": info.labels,
            "meta": info.meta,
            "status": info.status,
            "reason": info.reason,
            "head": info.head,
            "head_hash": info.head_hash,
            "message_count": info.message_count,
            "entry_count": info.entry_count,
            "created_at": str(info.created_at),
            "updated_at": str(info.updated_at),
        },
        "entries": [
            {
                "seq": entry.seq,
                "kind": entry.kind,
                "key": entry.key,
                "actor": entry.actor,
                "source": None if entry.source is None else [entry.source.tape, entry.source.seq],
                "meta": entry.meta,
                "recorded_at": str(entry.recorded_at),
                "version": entry.version,
                "hash": entry.hash,
            }
            for entry in chat.entries()
        ],
        "messages": _messages(chat),
        "at": [_messages(chat.at(seq)) for seq in range(info.head + 1)],
        "heads": [message.id for message in chat.heads()],
        "anchors": [
            {
                "name": anchor.name,
                "seq": anchor.seq,
                "state": anchor.state,
                "summary": anchor.summary,
                "phase": anchor.phase,
                "next_steps": anchor.next_steps,
                "source_ids": anchor.source_ids,
                "owner": anchor.owner,
                "parents": anchor.parents,
                "stale": anchor.stale,
            }
            for seq in range(info.head + 1)
            for anchor in chat.at(seq).anchors()[-1:]
        ],
        "context": [message.id for message in chat.context().messages],
    }
