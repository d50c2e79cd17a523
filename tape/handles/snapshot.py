"""A snapshot: the reads of a tape, as of one point of it or as of now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from typing import Any, TypedDict, Unpack, overload

from tape.core import strict
from tape.core.context.build import Context, build
from tape.core.context.explain import Explanation, digest
from tape.core.context.policy import Policy
from tape.core.context.turns import turn_facts
from tape.core.entries import payloads
from tape.core.journal.pointers import Pointer
from tape.core.memory.loading import Loaded
from tape.core.memory.prices import Prices
from tape.core.memory.state import Block, Usage, whole_number
from tape.core.messages.text import text_of
from tape.core.records import Anchor, Entry, Hit, Message, Page, StateValue, TapeInfo
from tape.core.summaries import compaction
from tape.core.summaries.compaction import Summary
from tape.db.read.entries import EntryFilter, bound
from tape.db.view.opening import Point
from tape.errors import InvalidEntry, TapeNotFound, UnknownEntry, UnknownMessage
from tape.handles.services import Services

__all__ = ["Bounds", "PageBounds", "Snapshot"]


class Bounds(TypedDict, total=False):
    """Where a page of messages may end, besides its ``limit``."""

    before: str | None
    after: str | None
    max_bytes: int | None


class PageBounds(Bounds, total=False):
    """All that makes a page of messages, as far as it is given."""

    limit: int | None


_OPENING = 50
"""How many messages are looked at for the first request, which mostly is the first or stands behind a system prompt."""
LONGEST_TITLE = 80
"""Characters of a title that is made of a request."""


class Snapshot:
    """The reads of a tape, as of one point of it (``tape.at(…)``) or, on the tape itself, as of now."""

    def __init__(self, services: Services, id: str, point: Point = None, head: str | None = None) -> None:
        self._services = services
        self._reader = services.reader
        self._id = id
        self._point = point
        self._head = head
        """The message that ``at`` named as the head."""

    @property
    def id(self) -> str:
        """The tape's id."""
        return self._id

    def _repr_html_(self) -> str:
        """Return it as notebooks show it."""
        from tape.web.report.notebook import tape_frame

        return tape_frame(self)

    def info(self) -> TapeInfo:
        """Return what is known of the tape without reading it. An unwritten tape has ``head`` 0."""
        return self._reader.info(self._id, self._point) or TapeInfo(id=self._id, owner=self._services.owner)

    def pointer(self) -> str:
        """Return the tape as it is here as a short text, ``tape:<tape>@<seq>#<hash>``, which ``tape.resolve`` resolves.

        It can be handed to another process in place of the history. Raises TapeNotFound for a tape that was never
        written, and InvalidEntry for a snapshot at a message, which is no point in time.
        """
        if self._head is not None:
            raise InvalidEntry("point", "must be a seq, not a message: a pointer names a point in time")
        if self._point is None:
            info = self.info()
            seq, hash = info.head, info.head_hash
        else:
            entry = self.find_entry(seq=self._point) if isinstance(self._point, int) and self._point else None
            seq, hash = (0, None) if entry is None else (entry.seq, entry.hash)
        if not seq or hash is None:
            raise TapeNotFound(self._id)
        return str(Pointer(self._id, seq, hash))

    # -- messages and entries

    @overload
    def messages(self, *, branch: str | None = None) -> list[Message]: ...

    @overload
    def messages(self, *, branch: str | None = None, limit: int, **bounds: Unpack[Bounds]) -> Page[Message]: ...

    @overload
    def messages(self, *, branch: str | None = None, **bounds: Unpack[PageBounds]) -> list[Message] | Page[Message]: ...

    def messages(
        self,
        *,
        branch: str | None = None,
        limit: int | None = None,
        before: str | None = None,
        after: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Message] | Page[Message]:
        """Return the messages from the root to the head, or to the message ``branch``, root first.

        With any of the other arguments the result is a Page: the last ``limit`` messages, those before or after the
        message with the given id, or as many of the last as fit into ``max_bytes`` (at least one). ``after=""`` stands
        before the first. ``limit=0`` gives an empty page, whose ``truncated`` tells whether there is any message.
        """
        branch = self._head if branch is None else branch
        if limit is None and before is None and after is None and max_bytes is None:
            return self._reader.messages(self._id, self._point, branch)
        return self._reader.page(self._id, self._point, branch, limit, before, after, max_bytes)

    def bodies(
        self, *, branch: str | None = None, limit: int | None = None
    ) -> list[tuple[dict[str, Any], dict[str, Any] | None]]:
        """Return the messages as ``messages`` does, root first, each as a pair: what was given, and its meta or None.

        Where ids and entries are not asked for, this takes half the time. The dicts are the caller's own.
        """
        return self._reader.bodies(self._id, self._point, self._head if branch is None else branch, limit)

    def message(self, id: str) -> Message:
        """Return one message. Raises UnknownMessage when it is not in the view."""
        return self._reader.message(self._id, self._point, id)

    def find(self, id: str) -> Message | None:
        """Return one message, or None when it is not in the view."""
        try:
            return self.message(id)
        except UnknownMessage:
            return None

    def children(self, id: str) -> list[Message]:
        """Return the messages that directly follow one, in the order in which they were placed."""
        return self._reader.children(self._id, self._point, id)

    def heads(self) -> list[Message]:
        """Return the last message of every branch, in the order in which they were placed."""
        return self._reader.heads(self._id, self._point)

    def __repr__(self) -> str:
        return f"<tape.{type(self).__name__} {self._id!r}{'' if self._point is None else f' at {self._point}'}>"

    def title(self) -> str | None:
        """Return the tape's name, or else how its first request begins, on one line; None if it has neither."""
        info = self.info()
        if info.name:
            return info.name
        for entry in self.entries(kinds=("append",), limit=_OPENING):
            payload = entry.payload
            if isinstance(payload, payloads.Append) and turn_facts(payload.message).begins:
                request = " ".join(text_of(payload.message).split())
                return request if len(request) <= LONGEST_TITLE else f"{request[: LONGEST_TITLE - 1]}…"
        return None

    def entries(
        self,
        *,
        after: int | Entry | tuple[str, int] = 0,
        before: int | Entry | tuple[str, int] | None = None,
        kinds: Iterable[str] | None = None,
        name: str | None = None,
        reverse: bool = False,
        inherited: bool = False,
        limit: int | None = None,
    ) -> Iterator[Entry]:
        """Yield the tape's own entries in order of seq, or the newest first with ``reverse``.

        ``name`` is that of events, anchors and handoffs, which are found by it however long the tape is. With
        ``inherited`` a fork's own entries follow those of its ancestors up to the fork points, each with its tape.
        ``after`` and ``before`` are places in that list: an entry of it, its tape and seq, or a seq of this tape,
        behind all that it inherits.
        """
        listed = [] if kinds is None else strict.listed(kinds, "kinds")
        filter = EntryFilter(
            after=None if type(after) is int and after == 0 else bound(after, "after"),
            before=None if before is None else bound(before, "before"),
            kinds=None if kinds is None else frozenset(strict.one_of(kind, payloads.KINDS, "kinds") for kind in listed),
            name=None if name is None else strict.identifier(name, "name"),
            reverse=strict.flag(reverse, "reverse"),
            inherited=strict.flag(inherited, "inherited"),
        )
        return self._reader.entries(self._id, self._point, filter, strict.most(limit))

    def entry(self, *, seq: int | None = None, key: str | None = None, inherited: bool = False) -> Entry:
        """Return the entry of a seq or of a key. Raises UnknownEntry when the tape has none.

        With ``inherited`` a key that a fork has not used itself is looked up on the tapes that it inherits from.
        """
        entry = self.find_entry(seq=seq, key=key, inherited=inherited)
        if entry is None:
            raise UnknownEntry(self._id, seq, key)
        return entry

    def find_entry(self, *, seq: int | None = None, key: str | None = None, inherited: bool = False) -> Entry | None:
        """Return the entry of a seq or of a key, or None when the tape has none; see ``entry``."""
        if (seq is None) == (key is None):
            raise InvalidEntry("seq", "give either seq= or key=")
        if strict.flag(inherited, "inherited") and key is None:
            raise InvalidEntry("inherited", "can only be used with key=: a seq always names an entry of this tape")
        seq = None if seq is None else strict.seq(seq, "seq")
        key = None if key is None else strict.identifier(key, "key", reserved=True)
        return self._reader.entry(self._id, self._point, seq, key, inherited=inherited)

    def anchors(self, limit: int = 20, before: int | Anchor | tuple[str, int] | None = None) -> list[Anchor]:
        """Return the last anchors and handoffs, newest last; ``before`` the first of them for the page before.

        Its tape and seq will do, too, or a seq of the tape's own; on a fork the list goes on with inherited ones.
        """
        return self._reader.anchors(self._id, self._point, limit, before)

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
        return self._services.searcher.search(
            query,
            tape=self._id,
            point=self._point,
            limit=strict.limit(limit),
            kind=kind,
            role=role,
            since=since,
            until=until,
        )

    # -- context and memory

    def context(
        self,
        *,
        budget: int | None = None,
        branch: str | None = None,
        policy: Policy | None = None,
        model: str | None = None,
        tools: Sequence[Any] | None = None,
    ) -> Context:
        """Return what a model should see: the latest anchor on the path, the prompt, and the messages after the anchor.

        Raises BudgetExceeded rather than return more than ``budget`` tokens; what is left out is up to the ``policy``.
        ``model`` and ``tools`` are what the request goes to and offers: its manifest keeps the name and a digest, so
        that ``explain`` can tell when they changed.
        """
        end = self._head if branch is None else branch
        inputs = self._reader.context(self._id, self._point, end, budget, policy)
        inputs.branch = end
        inputs.model = None if model is None else strict.text(model, "model")
        inputs.tools = None if tools is None else _digest(tools)
        context = build(inputs, budget, policy, self._reader.settings.counter)
        context._explain = self.explain
        return context

    def explain(
        self,
        context: Context | int | None = None,
        *,
        against: int | None = None,
        api: str = "chat",
        policy: Policy | None = None,
        prices: Prices | None = None,
    ) -> Explanation:
        """Return what each part of a context comes from, what is out and why, and what moved since the one before.

        ``context`` is one that this tape built, the seq of a recorded one, or None for what the tape shows now. The one
        before is the last that was recorded, or the one recorded at ``against``. The requests are compared as ``api``
        renders them (``chat``, ``responses``, ``anthropic``). A context recorded with a policy of the caller's needs it
        as ``policy``. What the provider's cache lost is priced by ``prices``, by default those of
        ``tape.load_prices()``, when usage was recorded behind the context before. Raises InvalidEntry for a seq that
        records no context.
        """
        from tape.handles.explaining import explain

        return explain(self, self.context(policy=policy) if context is None else context, policy, against, api, prices)

    def _context_at(self, seq: int, budget: int | None, branch: str | None, policy: Policy | None) -> Context:
        """Return the context of this tape as of an entry."""
        return Snapshot(self._services, self._id, seq).context(budget=budget, branch=branch, policy=policy)

    def _end_of_context(self, newest: int) -> tuple[Context, bool]:
        """Return the context with only its newest messages, and whether there are earlier ones, which are not read."""
        inputs = self._reader.context(self._id, self._point, self._head, newest=newest)
        context = build(inputs, None, None, self._reader.settings.counter)
        context._explain = self.explain
        return context, inputs.partial

    def needs_compaction(self, threshold: int) -> bool:
        """Whether the context has grown beyond ``threshold`` tokens, by the same count that compaction uses."""
        return self.context().tokens > whole_number(threshold, "threshold")

    def summary(self) -> Summary | None:
        """Return the newest summary in force on the active path, or None."""
        return compaction.newest_summary(self.summaries())

    def summaries(self) -> list[Summary]:
        """Return every summary in force on the active path, in the order of what they cover."""
        return self._reader.summaries(self._id, self._point)

    def state(self, slot: str, default: Any = None) -> Any:
        """Return what a slot of state holds; ``default`` when it holds nothing, which is not the same as null."""
        entry = self.state_entry(slot)
        return default if entry is None else entry.value

    def state_entry(self, slot: str) -> StateValue | None:
        """Return what a slot of state holds with the tape and seq of the entry that set it, or None for nothing."""
        return self._reader.state(self._id, self._point, strict.identifier(slot, "slot"))

    def states(self, *, prefix: str = "") -> dict[str, Any]:
        """Return every slot of state that holds something, or those whose names begin with ``prefix``, by name."""
        if prefix != "":
            prefix = strict.identifier(prefix, "prefix")
        return self._reader.states(self._id, self._point, prefix)

    def blocks(self) -> list[Block]:
        """Return the blocks of the prompt: those declared for the store first, then those made on the tape."""
        return self._reader.blocks(self._id, self._point)

    def loaded(self) -> list[Loaded]:
        """Return the documents that are loaded from the providers of blocks, in the order in which they were."""
        return self._reader.loaded(self._id, self._point)

    def usage(self) -> Usage:
        """Return the totals of tokens and cost recorded on this tape; a fork counts only its own."""
        return self._reader.usage(self._id, self._point)


def _digest(tools: Sequence[Any]) -> str:
    """Return a digest of the tools that a caller gives; raises InvalidEntry for what is no list of JSON values."""
    listed = strict.listed(tools, "tools")
    strict.encode(listed, "tools")
    return digest(listed)
