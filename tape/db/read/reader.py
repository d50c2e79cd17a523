"""Reading: every question that a handle can ask of a tape, each answered against one unchanging state.

The answers are functions over a view, in the modules beside this one; ``ask`` opens the view and runs them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, TypeVar

from tape.core import strict
from tape.core.context.build import ContextInputs, check_budget
from tape.core.context.policy import Policy
from tape.core.journal.requests import Request
from tape.core.memory.loading import Loaded
from tape.core.memory.state import Block, Usage
from tape.core.records import Anchor, Entry, Lineage, Message, Page, StateValue, TapeInfo
from tape.core.summaries.compaction import Candidate, Summary
from tape.db.engine.transaction import Database, Transaction
from tape.db.read import candidates, chain, context, entries, facts, memory, messages, recall, requests
from tape.db.read.messages import Body
from tape.db.view import branches
from tape.db.view.opening import Point, found_row, open_view, view_of
from tape.db.view.paths import ALL
from tape.db.view.tape_view import TapeView
from tape.errors import LeaseLost, TapeNotFound, UnknownEntry, UnknownMessage

__all__ = ["Reader"]

R = TypeVar("R")


class Reader:
    """Answers every question about the tapes of one database that one owner can see, or all."""

    def __init__(self, database: Database, *, owner: str | None, settings: memory.Settings | None = None) -> None:
        self.database = database
        self.owner = owner
        self.settings = settings or memory.Settings()

    def ask(
        self,
        tape: str,
        point: Point,
        question: Callable[[TapeView], R],
        empty: Callable[[], R],
        *,
        named: str | None = None,
    ) -> R:
        """Answer a question about a tape as of a point.

        A tape that was never written reads as ``empty``; but a point or a message that is ``named`` is not there.
        """

        def read(tx: Transaction) -> R:
            view = open_view(tx, tape, self.owner, point)
            if view is not None:
                return question(view)
            if named is not None:
                raise UnknownMessage(tape, named)
            if point is not None and point != 0:
                raise TapeNotFound(tape)
            return empty()

        return self.database.read(read)

    def check_exists(self, tape: str, *, hidden: bool = False) -> None:
        """Raise TapeNotFound unless there is such a tape for this owner, TapeHidden if it is not to be found."""
        self.database.read(lambda tx: found_row(tx, tape, self.owner, hidden=hidden))

    def exists(self, tape: str, of_owner: str | None) -> bool:
        """Whether this owner sees such a tape, and it is of ``of_owner`` if one is named. A hidden one is not seen."""
        try:
            row = self.database.read(lambda tx: found_row(tx, tape, self.owner))
        except TapeNotFound:
            return False
        return of_owner in (None, row.owner)

    def freeze(self, tape: str, point: Point) -> tuple[int, str | None]:
        """Return the seq that a point names now, and the message if it names one.

        A name or a moment looked up again at every read would follow what is recorded later.
        """

        def question(view: TapeView) -> tuple[int, str | None]:
            named = isinstance(point, str)
            if named and view.tx.one(view.sql.anchor_named, (view.number, point, view.seq)) is None:
                return view.seq, str(point)
            return view.seq, None

        return self.ask(tape, point, question, lambda: (0, None))

    # -- messages

    def messages(self, tape: str, point: Point, branch: str | None) -> list[Message]:
        """Return the whole path from the root to the head or to ``branch``."""
        return self.ask(tape, point, lambda view: messages.messages(view, branch), list, named=branch)

    def bodies(self, tape: str, point: Point, branch: str | None, limit: int | None) -> list[Body]:
        """Return data and meta of the last messages of the path, or of all of them."""
        count = None if limit is None else strict.limit(limit, least=0)
        return self.ask(tape, point, lambda view: messages.bodies(view, branch, count), list, named=branch)

    def page(
        self,
        tape: str,
        point: Point,
        branch: str | None,
        limit: int | None,
        before: str | None,
        after: str | None,
        max_bytes: int | None,
    ) -> Page[Message]:
        """Return a stretch of the path: the last messages, those before one, or those after one."""
        stretch = messages.Stretch.checked(limit, before, after, max_bytes)
        named = branch or before or after
        return self.ask(tape, point, lambda view: messages.page(view, branch, stretch), lambda: Page([]), named=named)

    def message(self, tape: str, point: Point, message_id: str) -> Message:
        """Return one message; raises UnknownMessage when it is not in the view."""

        def unknown() -> Message:
            raise UnknownMessage(tape, message_id)

        return self.ask(tape, point, lambda view: messages.message(view, message_id), unknown)

    def children(self, tape: str, point: Point, message_id: str) -> list[Message]:
        """Return the messages that follow one directly in the view, oldest branch first."""

        def unknown() -> list[Message]:
            raise UnknownMessage(tape, message_id)

        return self.ask(tape, point, lambda view: messages.children(view, message_id), unknown)

    def heads(self, tape: str, point: Point) -> list[Message]:
        """Return the last message of every branch, in the order in which they were placed."""
        return self.ask(tape, point, branches.heads, list)

    def messages_by_id(self, message_id: str, limit: int | None) -> list[Message]:
        """Return the messages of an id on all tapes that this owner sees, oldest tape first, a page at a time."""
        collected: list[Message] = []
        after: int | None = 0
        while after is not None and (limit is None or len(collected) < limit):
            read_page = partial(messages.held_anywhere, owner=self.owner, message_id=message_id, after=after)
            page, after = self.database.read(read_page)
            collected += page
        return collected[:limit]

    # -- entries

    def entries(self, tape: str, point: Point, filter: entries.EntryFilter, limit: int | None) -> Iterator[Entry]:
        """Yield entries in order, a page at a time, holding nothing open in between."""
        left, more = ALL if limit is None else limit, True
        while more and left > 0:
            most = min(entries.PAGE, left) if filter.is_exact else entries.PAGE
            page = partial(entries.page, filter=filter, most=most)
            rows: list[entries.Listed] = self.ask(tape, point, page, list)
            more = len(rows) == most
            if more:
                filter = filter.beyond(rows[-1])
            for listed in rows:
                if filter.kinds is None or listed.row.kind in filter.kinds:
                    yield listed.entry()
                    left -= 1
                    if left == 0:
                        return

    def entry(
        self, tape: str, point: Point, seq: int | None, key: str | None, *, inherited: bool = False
    ) -> Entry | None:
        """Return the entry of a tape with a seq or under a key, if there is one."""
        return self.ask(tape, point, partial(entries.find, seq=seq, key=key, inherited=inherited), _none)

    def check_chain(self, tape: str, seq: int, hash: str, depth: int | None) -> None:
        """Raise Corrupt unless the entries up to a seq are as they were when it had this hash."""
        self.database.read(lambda tx: chain.check_chain(view_of(tx, tape, self.owner), seq, hash, depth))

    def anchors(
        self, tape: str, point: Point, limit: int, before: int | Anchor | tuple[str, int] | None
    ) -> list[Anchor]:
        """Return the last anchors of the tape, newest last."""
        limit, end = strict.limit(limit), entries.before_anchor(tape, before)
        return self.ask(tape, point, lambda view: entries.anchors(view, limit, end), list)

    # -- facts

    def info(self, tape: str, point: Point) -> TapeInfo | None:
        """Return what is known of a tape without reading it."""

        def read(tx: Transaction) -> TapeInfo | None:
            view = open_view(tx, tape, self.owner, point)
            return None if view is None else facts.info(view)

        return self.database.read(read)

    def inherited(self, tape: str) -> dict[str, int]:
        """Return the ancestors of a tape, each with the seq up to which it is inherited."""
        return self.ask(tape, None, facts.inherited, dict)

    def lineage(self, tape: str) -> Lineage:
        """Return a tape's family and what was merged into it."""
        return self.ask(tape, None, facts.lineage, lambda: Lineage([], [], [], {}))

    def linked(self, tape: str, child: str) -> int | None:
        """Return the seq up to which a tape's fork was last merged into or linked to it, or None if it never was."""

        def read(tx: Transaction) -> int | None:
            view, fork = (open_view(tx, name, self.owner) for name in (tape, child))
            return None if view is None else facts.linked(view, fork)

        return self.database.read(read)

    def placed(self, tape: str, message_id: str) -> tuple[str, int] | None:
        """Return the tape and the seq that placed a message, in the view or not, or None."""
        return self.ask(tape, None, lambda view: facts.placed(view, message_id), _none)

    # -- context and memory

    def context(
        self,
        tape: str,
        point: Point,
        branch: str | None,
        budget: int | None = None,
        policy: Policy | None = None,
        newest: int | None = None,
    ) -> ContextInputs:
        """Return what a context of the tape is built from: all of it, as much as the policy needs, or its end."""
        check_budget(budget)
        settings = self._prompting(tape, point)
        return self.ask(
            tape,
            point,
            lambda view: context.context_inputs(view, settings, branch, budget, policy, newest),
            lambda: context.nothing(tape, settings),
            named=branch,
        )

    def _prompting(self, tape: str, point: Point) -> memory.Settings:
        """Return the settings with what providers list, unless a frozen prompt makes it needless to ask them."""
        settings = self.settings
        if not settings.blocks or not settings.providing or self.ask(tape, point, memory.frozen, _none) is not None:
            return settings
        return settings.provided()

    def recall(self, tape: str, seq: int) -> recall.Recalled:
        """Return a recorded context as it was, from the entries that its manifest names."""

        def missing() -> recall.Recalled:
            raise recall.not_recorded(tape, seq)

        return self.ask(tape, None, lambda view: recall.recall(view, seq), missing)

    def recorded_before(self, tape: str, seq: int) -> int | None:
        """Return the last entry before a seq that records a context, or None."""
        contexts = entries.EntryFilter(
            before=(None, seq), kinds=frozenset({"event"}), name=recall.CONTEXT, reverse=True
        )
        return next((entry.seq for entry in self.entries(tape, None, contexts, 1)), None)

    def entries_between(self, tape: str, point: Point, of: str, first: int, last: int) -> Iterator[Entry]:
        """Yield a range of entries of a tape or of one that it inherits from."""
        between = entries.EntryFilter(after=(of, first - 1), before=(of, last + 1), inherited=True)
        return self.entries(tape, point, between, None)

    def prompt_entries(self, tape: str, point: Point) -> tuple[tuple[str, int] | None, tuple[str, int] | None]:
        """Return the entries that the prompt and the loaded documents come from."""
        return self.ask(tape, point, memory.prompt_entries, lambda: (None, None))

    # -- requests and leases

    def request(self, tape: str, id: str, clock: Callable[[], int]) -> Request:
        """Return a request of a tape as it stands now; raises UnknownEntry when there is none of this id."""

        def unknown() -> Request:
            raise UnknownEntry(tape, key=id)

        return self.ask(tape, None, lambda view: requests.request(view, id, clock), unknown)

    def check_lease(self, tape: str, name: str, token: int, clock: Callable[[], int]) -> None:
        """Raise LeaseLost unless the holder of the token holds the lease now."""

        def lost() -> None:
            raise LeaseLost(tape, name, token)

        self.ask(tape, None, lambda view: requests.check_lease(view, name, token, clock), lost)

    # -- blocks, state and usage

    def blocks(self, tape: str, point: Point) -> list[Block]:
        """Return the blocks of a tape."""
        settings = self.settings.provided()
        return self.ask(tape, point, lambda view: memory.blocks(view, settings), partial(settings.assembled, []))

    def loaded(self, tape: str, point: Point) -> list[Loaded]:
        """Return the documents that are loaded on a tape."""
        return self.ask(tape, point, lambda view: memory.documents(view, self.settings), list)

    def frozen(self, tape: str) -> str | None:
        """Return the prompt that is frozen on a tape, or None."""
        return self.ask(tape, None, memory.frozen, _none)

    def state(self, tape: str, point: Point, slot: str) -> StateValue | None:
        """Return what a slot of state holds, or None when it holds nothing."""
        return self.ask(tape, point, lambda view: memory.state(view, self.settings, slot), _none)

    def states(self, tape: str, point: Point, prefix: str) -> dict[str, Any]:
        """Return the slots of state that hold something and whose names begin so."""
        return self.ask(tape, point, lambda view: memory.states(view, self.settings, prefix), dict)

    def usage(self, tape: str, point: Point) -> Usage:
        """Return the totals of a tape's own usage."""
        return self.ask(tape, point, memory.usage, Usage)

    def summaries(self, tape: str, point: Point) -> list[Summary]:
        """Return the summaries in force on the active path, shallowest first."""
        return self.ask(tape, point, memory.summaries, list)

    def candidates(self, tape: str) -> tuple[list[Candidate], list[Summary]]:
        """Return the messages that a run to summarise may be chosen from, and the summaries among them."""
        return self.ask(tape, None, candidates.candidates, lambda: ([], []))


def _none() -> None:
    return None
