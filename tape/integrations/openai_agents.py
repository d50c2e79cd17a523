"""OpenAI Agents SDK: a ``Session`` on a tape, with a budget for what the model is shown, and runs that can be paused.

A session is a tape of the same id (in the store of an owner, of an id of the owner's own). An item is a message whose
own ``id`` stays data: the SDK uses ids again. What the SDK takes away stays on the tape. A popped item is retracted. A
compaction is a branch: what it replaced stays where it was, and is found by search.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import takewhile
from typing import Any, TypeAlias, cast

from agents import Agent, RunState, SessionSettings, TResponseInputItem
from agents.memory import OpenAIResponsesCompactionArgs, OpenAIResponsesCompactionSession
from agents.memory.session_settings import coerce_session_settings, resolve_session_limit

import tape
from tape.integrations.histories import readable, tape_id
from tape.integrations.opening import Adapter, StoreLike, awaited, awaited_to_end

__all__ = ["TapeSession"]

_RAW = "openai-agents.raw"
"""Beside an item that no tape can hold: the item as it was."""
_RUN = "openai-agents.run"

Item: TypeAlias = TResponseInputItem


class TapeSession(Adapter):
    """A session of the OpenAI Agents SDK: ``Runner.run(agent, "Hello", session=TapeSession("chat-1", "agent.db"))``.

    ``store`` is a Store, an AsyncStore or a URL. With ``budget`` the model is shown ``context(budget=…, policy=…)`` of
    the tape in place of all its items. With ``compaction`` (the options of the SDK's OpenAIResponsesCompactionSession,
    such as ``{"model": "gpt-4.1"}``) a run ends with a compaction when there is enough to compact.
    """

    def __init__(
        self,
        session_id: str,
        store: StoreLike,
        *,
        session_settings: SessionSettings | dict[str, Any] | None = None,
        budget: int | None = None,
        policy: tape.Policy | None = None,
        compaction: Mapping[str, Any] | None = None,
    ) -> None:
        self.session_id = session_id
        self.session_settings: SessionSettings | None = coerce_session_settings(session_settings or {})
        self._shown: dict[str, Any] | None = None
        if budget is not None or policy is not None:
            self._shown = {"budget": budget, "policy": policy}
        self._compaction = compaction
        if compaction is not None:
            # A wrong option fails here, not at the end of a run.
            OpenAIResponsesCompactionSession(session_id, self, **compaction)
        super().__init__(store)
        own = self._connected.store
        self.tape_id = session_id if own.owner is None else tape_id(own, "openai-agents", session_id)
        """The id of the session's tape. Two owners may have sessions of one id."""
        own.tape(self.tape_id)

    @awaited
    def get_items(self, limit: int | None = None) -> list[Item]:
        """Return the items, oldest first: the last ``limit``, or all of them, or with a budget what fits into it.

        Raises BudgetExceeded when the last request and step do not fit. A limit asks for items, not for a context.
        """
        chat, last = self._tape(), resolve_session_limit(limit, self.session_settings)
        if last is None and self._shown is not None:
            return _shown(chat.context(**self._shown))
        # As the SDK's own SQLite session has it, a negative limit is none.
        bodies = chat.bodies(limit=None if last is None or last < 0 else last)
        with readable(chat.id, 0):
            return [cast(Item, data) if meta is None else _item(data, meta) for data, meta in bodies]

    @awaited_to_end
    def add_items(self, items: list[Item]) -> None:
        """Append items, all or none."""
        if items:
            _extend(self._tape(), items)

    @awaited_to_end
    def pop_item(self) -> Item | None:
        """Retract the last item and return it, or None if there is none."""

        def write(store: tape.Store) -> tape.Message | None:
            chat = store.tape(self.tape_id)
            last = next(iter(chat.messages(limit=1)), None)
            if last is not None:
                chat.retract(last.id)
            return last

        popped = self._connected.store.transaction(write)
        return None if popped is None else _item(popped.data, popped.meta)

    @awaited_to_end
    def clear_session(self) -> None:
        """Take all items out of the session, on all branches, and forget the paused run. They stay on the tape."""

        def write(store: tape.Store) -> None:
            chat = store.tape(self.tape_id)
            if chat.heads():
                chat.clear()
            _drop(chat)

        self._connected.store.transaction(write)

    def _tape(self) -> tape.Tape:
        return self._connected.store.tape(self.tape_id)

    # -- compaction

    async def run_compaction(self, args: OpenAIResponsesCompactionArgs | None = None, *, wrapper: Any = None) -> None:
        """Have OpenAI's API compact the items, and go on behind its output as a new branch.

        The Runner calls this after every run, which does nothing unless the session was made with ``compaction``. A
        call of the program's own uses the SDK's defaults then.
        """
        if self._compaction is None and wrapper is not None:
            return
        # A new one each time: it remembers items, and would not notice those that were added past it.
        compacting = OpenAIResponsesCompactionSession(self.session_id, self, **(self._compaction or {}))
        await compacting.run_compaction(args, wrapper=wrapper)

    async def _get_compaction_snapshot(
        self, limit: int, *, prune_prefix: Callable[[Item], bool] | None = None
    ) -> _Suffix:
        """What the SDK asks a session for that can replace its last items in one step."""
        page = await self._connected.run(lambda store: store.tape(self.tape_id).messages(limit=limit))

        async def replace_suffix(start: int, output: list[Item]) -> bool:
            replaced = page.items[start:]
            replacing = partial(_replace, self.tape_id, replaced, output, prune_prefix)
            return bool(replaced) and await self._connected.finish(lambda store: store.transaction(replacing))

        return _Suffix([_item(message.data, message.meta) for message in page], not page.truncated, replace_suffix)

    async def _atomic_replace_items(self, items: list[Item]) -> bool:
        """What the SDK asks a session for that can replace all its items in one step."""
        await self._connected.finish(lambda _: _branch(self._tape(), None, items))
        return True

    # -- paused runs

    @awaited_to_end
    def save_run_state(self, /, state: RunState[Any], **options: Any) -> None:
        """Keep a run that waits, for an approval for example; ``options`` are those of ``RunState.to_json``.

        There is one at a time: the one before is replaced.
        """
        self._tape().put(_RUN, {"state": tape.to_strict(state.to_json(**options))})

    async def load_run_state(self, agent: Agent[Any], **options: Any) -> RunState[Any] | None:
        """Return the run that was kept, or None; ``options`` are those of ``RunState.from_json``."""
        kept = await self._connected.run(lambda store: store.tape(self.tape_id).state(_RUN))
        if kept is None:
            return None
        with readable(self.tape_id, 0):
            state = dict(tape.from_strict(kept["state"]))
        return await RunState.from_json(agent, state, **options)

    @awaited_to_end
    def drop_run_state(self) -> bool:
        """Forget the run that was kept. Of several that do so one is told True: that one may resume it."""
        return self._connected.store.transaction(lambda store: _drop(store.tape(self.tape_id)))


@dataclass(frozen=True)
class _Suffix:
    """The last items of a session, and how to replace the end of them, as the SDK's compaction takes it."""

    items: list[Item]
    complete: bool
    """Whether there are no items before these."""
    replace_suffix: Callable[[int, list[Item]], Awaitable[bool]]


def _shown(context: tape.Context) -> list[Item]:
    items: list[Any] = []
    if context.prompt is not None:
        items.append({"role": "developer", "content": context.prompt})
    if context.anchor is not None and context.manifest.checkpoint:
        items.append({"role": "user", "content": context.manifest.checkpoint})
    # The items themselves, not a rendering of them: reasoning and what follows it go back to the API as they came.
    return [*items, *(message.to_dict() for message in context.messages)]


def _replace(
    id: str, replaced: list[tape.Message], output: list[Item], expired: Callable[[Item], bool] | None, store: tape.Store
) -> bool:
    """Branch off before these messages if they still are the last ones; what expired before them goes, too."""
    chat = store.tape(id)
    last = chat.messages(limit=len(replaced) + 1).items
    if _versions(last[-len(replaced) :]) != _versions(replaced):
        return False
    before = last[0].id if len(last) > len(replaced) else None
    old: list[tape.Message] = []
    if expired is not None and before is not None:
        old += takewhile(lambda kept: expired(_item(kept.data, kept.meta)), chat.messages(branch=before))
    _branch(chat, before, output)
    if old:
        chat.retract(*(message.id for message in old))
    return True


def _branch(chat: tape.Tape, parent: str | None, items: list[Item]) -> None:
    if items:
        _extend(chat, items, parent=parent)
    else:
        chat.switch(parent)


def _drop(chat: tape.Tape) -> bool:
    kept = chat.state(_RUN) is not None
    if kept:
        chat.put(_RUN, None)
    return kept


# -- items


def _extend(chat: tape.Tape, items: list[Item], **options: Any) -> None:
    ids = [tape.new_id() for _ in items]
    try:
        chat.extend(cast(Any, items), ids=ids, **options)
    except tape.InvalidEntry:
        clean, metas = zip(*(_mended(item) for item in items), strict=True)
        chat.extend(clean, ids=ids, metas=metas, **options)


def _mended(item: Any) -> tuple[Any, dict[str, Any] | None]:
    """Return an item as a tape can hold it, and beside it the item as it was, as far as JSON can hold that."""
    clean, replaced = tape.lenient(item)
    return clean, {_RAW: tape.to_strict(item)} if replaced else None


def _item(data: Any, meta: dict[str, Any] | None) -> Item:
    # The data was decoded for this read, so that nobody else has it: a copy would be one too many.
    return cast(Item, data if meta is None or _RAW not in meta else tape.from_strict(meta[_RAW]))


def _versions(messages: list[tape.Message]) -> list[tuple[str, int]]:
    return [(message.id, message.revision) for message in messages]
