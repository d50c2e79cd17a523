"""Recovery: after a crash, what is known of every call. Read-only: facts, not permission to run anything again."""

from __future__ import annotations

from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, overload

from msgspec import Struct

from tape.core import json_text
from tape.core.messages import shapes
from tape.core.render.settle import mend
from tape.errors import Corrupt, InvalidEntry
from tape.handles.tape import Tape
from tape.runs.recording import RecordedCall, calls_of_runs, find_run, list_runs

if TYPE_CHECKING:
    from tape.aio.tape import AsyncTape
    from tape.core.records import Message

__all__ = ["STATES", "CallState", "recover"]

STATES = ("not_dispatched", "completed", "failed", "unknown")
"""What can be known of a call."""


class CallState(Struct, frozen=True, kw_only=True):
    """What is known of one call: ``state`` is not_dispatched, completed, failed or unknown.

    "unknown" was started and has no outcome: it may have run. "not_dispatched" was never started by a run, or its
    effect was rolled back with the transaction that it was bound to.
    """

    state: str
    kind: str
    name: str
    run: str | None = None
    lane: str | None = None
    n: int | None = None
    seq: int | None = None
    """The entry of the call; None for one that was never started."""
    effect: str | None = None
    key: str | None = None
    """The effect key, to look it up with whoever received it."""
    call_id: str | None = None
    """The id under which the model asked for it, if the call is in the tape's view and has no result there."""
    message_id: str | None = None
    request: Any = None
    error: str | None = None
    bound: bool = False


@overload
def recover(chat: Tape, run: str | None = None) -> list[CallState]: ...


@overload
def recover(chat: AsyncTape, run: str | None = None) -> Coroutine[Any, Any, list[CallState]]: ...


def recover(chat: Tape | AsyncTape, run: str | None = None) -> list[CallState] | Coroutine[Any, Any, list[CallState]]:
    """Return what is known of every call of the runs that did not complete, or of one ``run``; nothing is written.

    Tool calls in the tape's view that have no result are matched with the calls that the runs made, by name and
    arguments; those that no run made are there as not_dispatched. With an AsyncTape the result is to be awaited.
    """
    if isinstance(chat, Tape):
        return _recover(chat, run)
    from tape.aio.runs import in_thread

    return in_thread(chat, lambda tape: _recover(tape, run))


def _recover(chat: Tape, run: str | None) -> list[CallState]:
    if run is None:
        infos = [info for info in list_runs(chat, inherited=True) if info.status != "completed"][::-1]
        for info in infos:
            if info.status == "unreadable":
                raise Corrupt(
                    info.tape, info.seq, f"run {info.id!r} cannot be read; name the run to recover another one"
                )
    elif (found := find_run(chat, run)) is not None:
        infos = [found]
    else:
        raise InvalidEntry("run", f"tape {chat.id!r} has no run {run!r}")
    calls = [call for recorded in calls_of_runs(chat, infos).values() for call in recorded] if infos else []
    unsettled = _unsettled(chat.messages())
    matched: dict[int, tuple[str, str]] = {}
    states: list[CallState] = []
    for message, call in unsettled:
        dispatched = _dispatched(call, message, [recorded for recorded in calls if recorded.seq not in matched])
        if dispatched is not None:
            matched[dispatched.seq] = (call.id, message.id)
        elif run is None:
            arguments = json_text.value_of(call.arguments)
            states.append(
                CallState(
                    state="not_dispatched",
                    kind="tool",
                    name=call.name,
                    call_id=call.id,
                    message_id=message.id,
                    request=arguments,
                )
            )
    return [_state(call, *matched.get(call.seq, (None, None))) for call in calls] + states


def _state(call: RecordedCall, call_id: str | None, message_id: str | None) -> CallState:
    state = {"completed": "completed", "partial": "completed", "failed": "failed"}.get(call.status, "unknown")
    if call.result is None and call.bound:
        state = "not_dispatched"
    error = None if call.result is None else call.result.error
    return CallState(
        state=state,
        kind=call.kind,
        name=call.name,
        run=call.run,
        lane=call.lane,
        n=call.n,
        seq=call.seq,
        effect=call.effect,
        key=call.key,
        call_id=call_id,
        message_id=message_id,
        request=call.request() if call.kind == "tool" else None,
        error=None if error is None else str(error),
        bound=call.bound,
    )


def _unsettled(messages: list[Message]) -> list[tuple[Message, shapes.Call]]:
    """Return the tool calls that have no result, each with the message that makes it."""
    neutrals = [shapes.read(message.data) for message in messages]
    missing = {(fix.at, fix.call) for fix in mend(neutrals).fixes if fix.what == "unsettled call"}
    return [
        (messages[at], part)
        for at, neutral in enumerate(neutrals)
        for part in neutral.parts
        if isinstance(part, shapes.Call) and (at, part.id) in missing
    ]


def _dispatched(call: shapes.Call, message: Message, calls: list[RecordedCall]) -> RecordedCall | None:
    """Return the recorded call that a tool call of a message became.

    One of the same tool with other arguments counts, too, where there is none with the same: a wrapper may add to them,
    and a call that ran must not look as if it had not.
    """
    later = [
        recorded
        for recorded in calls
        if recorded.kind == "tool" and recorded.name == call.name and recorded.seq > message.seq
    ]
    arguments = json_text.value_of(call.arguments)
    return next((recorded for recorded in later if recorded.request() == arguments), later[0] if later else None)
