"""A snapshot: the reads of a tape, as of one point of it or as of now."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime
from typing import Any, overload

from tape.core import strict
from tape.core.context.build import Context, build
from tape.core.context.policy import Policy
from tape.core.entries import payloads
from tape.core.memory.state import Block, Usage, whole_number
from tape.core.records import Anchor, Entry, Hit, Message, Page, TapeInfo
from tape.core.summaries import compaction
from tape.core.summaries.compaction import Summary
from tape.db.view.paths import Point
from tape.errors import UnknownMessage
from tape.handles.services import Services

__all__ = ["Snapshot"]


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

    def info(self) -> TapeInfo:
        """Return what is known of the tape without reading it. An unwritten tape has ``head`` 0."""
        return self._reader.info(self._id, self._point) or TapeInfo(id=self._id, owner=self._services.owner)

    # -- messages and entries

    @overload
    def messages(self, *, branch: str | None = None) -> list[Message]: ...

    @overload
    def messages(
        self,
        *,
        branch: str | None = None,
        limit: int | None = None,
        before: str | None = None,
        after: str | None = None,
        max_bytes: int | None = None,
    ) -> list[Message] | Page[Message]: ...

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
        message with the given id, or as many of the last as fit into ``max_bytes`` (at least one).
        """
        branch = self._head if branch is None else branch
        if limit is None and before is None and after is None and max_bytes is None:
            return self._reader.messages(self._id, self._point, branch)
        return self._reader.page(self._id, self._point, branch, limit, before, after, max_bytes)

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

    def entries(
        self, *, after: int = 0, kinds: Iterable[str] | None = None, limit: int | None = None
    ) -> Iterator[Entry]:
        """Yield the tape's own entries in order of seq."""
        listed = [] if kinds is None else strict.listed(kinds, "kinds")
        wanted = None if kinds is None else frozenset(strict.one_of(kind, payloads.KINDS, "kinds") for kind in listed)
        return self._reader.entries(self._id, self._point, strict.seq(after, "after"), wanted, strict.most(limit))

    def anchors(self, limit: int = 20, before: int | Anchor | None = None) -> list[Anchor]:
        """Return the last anchors and handoffs, newest last; ``before`` the first of them for the page before.

        A seq will do, too, for an anchor of the tape's own; on a fork the list goes on with inherited ones.
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
    ) -> Context:
        """Return what a model should see: the latest anchor on the path, the prompt, and the messages after the anchor.

        Raises BudgetExceeded rather than return more than ``budget`` tokens; what is left out is up to the ``policy``.
        """
        end = self._head if branch is None else branch
        view = self._reader.view(self._id, self._point, end, budget, policy)
        return build(view, budget, policy, self._reader.settings.counter)

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
        return self._reader.states(self._id, self._point, strict.identifier(slot, "slot")).get(slot, default)

    def states(self) -> dict[str, Any]:
        """Return every slot of state that holds something."""
        return self._reader.states(self._id, self._point, None)

    def blocks(self) -> list[Block]:
        """Return the blocks of the prompt: those declared for the store first, then those made on the tape."""
        return self._reader.blocks(self._id, self._point)

    def usage(self) -> Usage:
        """Return the totals of tokens and cost recorded on this tape; a fork counts only its own."""
        return self._reader.usage(self._id, self._point)
