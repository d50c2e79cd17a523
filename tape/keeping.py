"""What a tape keeps besides messages, as its handle offers it: state, blocks, usage, summaries, contexts, tools."""

from __future__ import annotations

import asyncio
import inspect
import threading
from collections.abc import Sequence
from datetime import datetime
from typing import TYPE_CHECKING, Any

import msgspec
from msgspec import UNSET, UnsetType

from tape.core import compaction, ids, payloads, strict, toolcalls
from tape.core.compaction import AddSummary, StartCompaction, Summarize, Summary, SummaryRequest
from tape.core.context import Context, Policy, build
from tape.core.fold import COMPACTION
from tape.core.memory import Block, ChangeBlock, ChangeState, FreezePrompt, RecordUsage, Usage, block_text, whole_number
from tape.core.plan import Intent, Plain, canonical, digest_of, keyed
from tape.core.records import Entry, Hit, Message, Receipt
from tape.core.tokens import estimate, message_tokens
from tape.db.contexts import CONTEXT, Recalled
from tape.errors import InvalidEntry, ProvenanceConflict, SummaryMoved, TapeError

if TYPE_CHECKING:
    from tape.db.paths import Point
    from tape.store import Store
    from tape.tools import Toolset

__all__ = ["Kept", "Keeping"]


class Kept:
    """The reads of what a tape keeps."""

    _store: Store
    _id: str
    _point: Point
    _head: str | None

    def context(
        self,
        *,
        budget: int | None = None,
        branch: str | None = None,
        policy: Policy | None = None,
    ) -> Context:
        """Return what a model should see: the latest anchor on the path, the prompt, and the messages after the anchor.

        Raises BudgetExceeded rather than return more than ``budget`` tokens; what is left out is up to the ``policy``.
        """
        reader = self._store._reader
        end = self._head if branch is None else branch
        return build(reader.view(self._id, self._point, end), budget, policy, reader.settings.counter)

    def summary(self) -> Summary | None:
        """Return the newest summary in force on the active path, or None."""
        found = self.summaries()
        own = [one for one in found if one.tape == self._id]
        return max(own or found, key=lambda one: one.seq, default=None)

    def summaries(self) -> list[Summary]:
        """Return every summary in force on the active path, in the order of what they cover."""
        return self._store._reader.summaries(self._id, self._point)

    def state(self, slot: str, default: Any = None) -> Any:
        """Return what a slot of state holds; ``default`` when it holds nothing, which is not the same as null."""
        return self._store._reader.states(self._id, self._point, strict.identifier(slot, "slot")).get(slot, default)

    def states(self) -> dict[str, Any]:
        """Return every slot of state that holds something."""
        return self._store._reader.states(self._id, self._point, None)

    def blocks(self) -> list[Block]:
        """Return the blocks of the prompt: those declared for the store first, then those made on the tape."""
        return self._store._reader.blocks(self._id, self._point)

    def usage(self) -> Usage:
        """Return the totals of tokens and cost recorded on this tape; a fork counts only its own."""
        return self._store._reader.usage(self._id, self._point)

    def needs_compaction(self, threshold: int) -> bool:
        """Whether the context has grown beyond ``threshold`` tokens, by the same count that compaction uses."""
        return self.context().tokens > whole_number(threshold, "threshold")

    def search(
        self,
        query: str,
        *,
        limit: int = 20,
        kind: str | None = None,
        role: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
    ) -> list[Hit]:
        """Find the messages of this tape that have all words of ``query``, newest first; see ``Store.search``."""
        return self._store._searcher.search(
            query,
            tape=self._id,
            point=self._point,
            limit=strict.limit(limit),
            kind=kind,
            role=role,
            since=since,
            until=until,
        )


class Keeping(Kept):
    """The writes of what a tape keeps."""

    def _record(
        self,
        intents: Sequence[Intent],
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
        batch: str | None = None,
    ) -> list[Receipt]:
        raise AssertionError("the tape records")

    def patch(
        self,
        slot: str,
        patch: Any,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Change a slot of state by a JSON merge patch: None deletes a member, or the slot itself."""
        return self._state(slot, patch, True, key, actor, meta, expected_head)

    def put(
        self,
        slot: str,
        value: Any,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Put a value into a slot of state; it may hold nulls."""
        return self._state(slot, value, False, key, actor, meta, expected_head)

    def _state(
        self,
        slot: str,
        given: Any,
        patch: bool,
        key: str | None,
        actor: str | None,
        meta: dict[str, Any] | None,
        expected_head: int | None,
    ) -> Receipt:
        slot = strict.identifier(slot, "slot")
        if len(slot) > _LONGEST_NAME:
            raise InvalidEntry("slot", f"must have at most {_LONGEST_NAME} characters")
        raw = strict.encode(given, "patch" if patch else "value")
        intent = ChangeState(
            **keyed(key),
            slot=slot,
            given=msgspec.json.decode(raw),
            patch=patch,
            spec=self._store._reader.settings.slots.get(slot),
        )
        return self._record([intent], actor, meta, expected_head)[0]

    def set_block(
        self,
        label: str,
        text: str,
        *,
        description: str | UnsetType | None = UNSET,
        max_tokens: int | UnsetType | None = UNSET,
        read_only: bool | UnsetType = UNSET,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Set a block of the prompt. What is not given of its configuration stays; over its limit it is refused."""
        if max_tokens is not UNSET and max_tokens is not None:
            whole_number(max_tokens, "max_tokens")
        if description is not UNSET and description is not None:
            description = strict.text(description, "description", empty=True)
        if read_only is not UNSET:
            strict.flag(read_only, "read_only")
        intent = self._block(label, "set", block_text(text), key)
        intent.description, intent.max_tokens, intent.read_only = description, max_tokens, read_only
        return self._record([intent], actor, meta, expected_head)[0]

    def append_block(
        self,
        label: str,
        text: str,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Add a line to a block. Two of these at one time both land."""
        return self._record([self._block(label, "append", block_text(text), key)], actor, meta, expected_head)[0]

    def remove_block(
        self,
        label: str,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Remove a block from the prompt."""
        return self._record([self._block(label, "remove", None, key)], actor, meta, expected_head)[0]

    def _block(self, label: str, op: str, text: str | None, key: str | None) -> ChangeBlock:
        label = strict.identifier(label, "label")
        if len(label) > _LONGEST_NAME:
            raise InvalidEntry("label", f"must have at most {_LONGEST_NAME} characters")
        settings = self._store._reader.settings
        spec = next((one for one in settings.blocks if one.label == label), None)
        return ChangeBlock(**keyed(key), label=label, op=op, text=text, spec=spec, counter=settings.counter or estimate)

    def freeze_prompt(
        self,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> str:
        """Return the frozen prompt, recording it as it is rendered now if there is none yet."""
        found = self._store._reader.frozen(self._id)
        if found is not None:
            return found
        return self.refresh_prompt(key=key, actor=actor, meta=meta, expected_head=expected_head)

    def refresh_prompt(
        self,
        *,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> str:
        """Render the prompt from the blocks as they are now, record it, and return it.

        With the key of an earlier call, that call's prompt comes back.
        """
        settings = self._store._reader.settings
        intent = FreezePrompt(**keyed(key), specs=settings.blocks, counter=settings.counter or estimate)
        receipt = self._record([intent], actor, meta, expected_head)[0]
        [entry] = self._store._reader.entries(self._id, None, receipt.seq - 1, None, 1)
        return (entry.payload.text if isinstance(entry.payload, payloads.Block) else None) or ""

    def record_usage(
        self,
        *,
        input_tokens: int = 0,
        output_tokens: int = 0,
        cached_tokens: int = 0,
        cost: int = 0,
        model: str | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Add the tokens and the cost (in millionths) of one model call to the totals of the tape."""
        used = payloads.Usage(
            input_tokens=whole_number(input_tokens, "input_tokens"),
            output_tokens=whole_number(output_tokens, "output_tokens"),
            cached_tokens=whole_number(cached_tokens, "cached_tokens"),
            cost=whole_number(cost, "cost"),
            model=None if model is None else strict.identifier(model, "model"),
        )
        intent = RecordUsage(**keyed(key), used=used, changes_view=False)
        return self._record([intent], actor, meta, expected_head)[0]

    # -- contexts

    def recorded_context(
        self, *, budget: int | None = None, branch: str | None = None, policy: Policy | None = None
    ) -> tuple[Context, Receipt]:
        """Build a context and record its manifest, so that ``recall`` can build it again; returns both."""
        context = self.context(budget=budget, branch=branch, policy=policy)
        # As it will be read: a tuple in it would come back as a list.
        manifest = msgspec.json.decode(msgspec.json.encode(context.manifest))
        payload = payloads.Event(name=CONTEXT, data=manifest)
        intent = Plain(key=ids.new_id(), payload=payload, changes_view=False)
        return context, self._record([intent], None, None, None)[0]

    def recall(self, seq: int) -> Recalled:
        """Return a recorded context byte for byte as the model saw it, whatever happened since."""
        return self._store._reader.recall(self._id, strict.seq(seq, "seq"))

    # -- summaries

    def set_summary(
        self,
        text: str,
        *,
        first: str,
        last: str,
        expected: int | None = None,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt:
        """Let a summary stand for the messages from ``first`` to ``last``, which stay on the tape.

        ``expected`` is the seq of the newest summary on the path, None for none yet: if another one was recorded in
        between, SummaryMoved tells which.
        """
        intent = AddSummary(
            **keyed(key),
            text=strict.text(text, "text"),
            first=strict.identifier(first, "first"),
            last=strict.identifier(last, "last"),
            expected=None if expected is None else strict.seq(expected, "expected"),
        )
        return self._record([intent], actor, meta, expected_head)[0]

    def compact(
        self,
        summarize: Summarize,
        *,
        budget: int = 20_000,
        head: int = 3,
        min_tail: int = 2,
        timeout: float = 120.0,
        key: str | None = None,
        actor: str | None = None,
        meta: dict[str, Any] | None = None,
        expected_head: int | None = None,
    ) -> Receipt | None:
        """Summarise what lies between the first messages and the last ``budget`` tokens, if there is anything.

        ``summarize`` gets a SummaryRequest and returns the text; it may be a coroutine function. It is called outside
        of any transaction, for at most ``timeout`` seconds. One that fails, hangs or returns nothing usable changes
        nothing and is recorded as failed. Returns None when there was nothing to do or another compaction is under way.
        With the key of an earlier call that succeeded, its receipt comes back and nothing is summarised.
        """
        if key is not None and (found := self._store._reader.recorded(self._id, strict.identifier(key, "key"))):
            return _repeated(found)
        for count, field in ((budget, "budget"), (head, "head"), (min_tail, "min_tail")):
            whole_number(count, field)
        timeout = strict.seconds(timeout, "timeout")
        if not callable(summarize):
            raise InvalidEntry("summarize", f"must be a function, not {strict.shown(summarize)}")
        counter = self._store._reader.settings.counter or estimate
        context = self.context()
        before = context.summary
        messages = context.messages

        def cost(message: Message) -> int:
            return message_tokens(message.data, counter)

        run = compaction.choose_run(
            messages, lambda m: toolcalls.find(m.data), head=head, tail_tokens=budget, min_tail=min_tail, cost=cost
        )
        if run is None:
            return None
        # A summary inside the run is continued: the new one covers what it covers, too.
        shown = {f"{strict.RESERVED}summary:{one.seq}": one for one in context.summaries}
        inside = messages[run[0] : run[1] + 1]
        chosen = [message for message in inside if message.id not in shown]
        earlier = [shown[message.id] for message in inside if message.id in shown]
        previous = "\n\n".join(one.text for one in earlier) or None
        start = shown[inside[0].id].first if inside[0].id in shown else inside[0].id
        last = shown[inside[-1].id].last if inside[-1].id in shown else inside[-1].id
        limit = compaction.budget_for(chosen, cost)
        request = SummaryRequest(chosen, previous, limit, compaction.summary_prompt(chosen, previous, limit))
        try:
            self._note("started", actor, meta, timeout, expected_head=expected_head)
        except compaction.Underway:
            return None
        try:
            text = _call(summarize, request, timeout)
            if not isinstance(text, str) or not text.strip():
                raise InvalidEntry("summarize", "returned nothing")
            if not compaction.within(text, limit, counter):
                raise InvalidEntry("summarize", f"returned far more than the {limit} tokens it was asked for")
            receipt = self.set_summary(
                text,
                first=start,
                last=last,
                expected=before.seq if before is not None else None,
                key=key,
                actor=actor,
                meta=meta,
            )
        except Exception as error:
            self._note("failed", actor, meta, timeout, why=f"{type(error).__name__}: {error}"[:500])
            if isinstance(error, SummaryMoved):
                return None
            if isinstance(error, TapeError):
                raise
            raise InvalidEntry("summarize", f"failed: {error}") from error
        self._note("finished", actor, meta, timeout)
        return receipt

    def _note(
        self,
        state: str,
        actor: str | None,
        meta: dict[str, Any] | None,
        timeout: float,
        why: str | None = None,
        expected_head: int | None = None,
    ) -> None:
        """Record how a compaction goes."""
        now = self._store._clock()
        intent: Intent
        if state == "started":
            deadline = now + int((timeout + 5) * 1_000_000)
            intent = StartCompaction(key=ids.new_id(), deadline=deadline, now=now, changes_view=False)
        else:
            data: dict[str, Any] = {"state": state} if why is None else {"state": state, "why": why.replace("\0", "")}
            intent = Plain(key=ids.new_id(), payload=payloads.Event(name=COMPACTION, data=data), changes_view=False)
        self._record([intent], actor, meta, expected_head)

    # -- tools

    def tools(self) -> Toolset:
        """Return the tools that let a model read its own tape and keep notes; only those that apply are there."""
        from tape.tools import tape_tools

        return tape_tools(self)  # type: ignore[arg-type]


_LONGEST_NAME = 240


def _repeated(entry: Entry) -> Receipt:
    """Return the receipt of a compaction that was recorded under the caller's key before."""
    if not isinstance(entry.payload, payloads.Compact):
        stored = digest_of(canonical(payloads.content(entry.payload) if entry.payload is not None else None))
        raise ProvenanceConflict(entry.tape, entry.key, entry.seq, stored, digest_of(canonical({"kind": "compact"})))
    return Receipt(entry.tape, entry.seq, entry.key, None, entry.hash, duplicate=True, position=entry.position)


def _call(summarize: Summarize, request: SummaryRequest, timeout: float) -> Any:
    """Run a summarizer, plain or async, for at most ``timeout`` seconds."""
    result: list[Any] = []

    def work() -> None:
        try:
            value = summarize(request)
            if inspect.isawaitable(value):
                value = asyncio.run(_awaited(value))
            result.append((True, value))
        except BaseException as error:
            result.append((False, error))

    # A thread of its own can be left behind when it hangs; the store never waits for it.
    thread = threading.Thread(target=work, name="tape-summarize", daemon=True)
    thread.start()
    thread.join(timeout)
    if not result:
        raise TimeoutError(f"the summarizer took longer than {timeout} s")
    fine, value = result[0]
    if not fine:
        raise value
    return value


async def _awaited(value: Any) -> Any:
    return await value
