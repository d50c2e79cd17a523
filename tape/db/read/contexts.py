"""Reading what a context is built from: the anchor, the rows after it that no summary covers, the prompt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from msgspec import UNSET, Struct

from tape.core import strict
from tape.core.context.build import Context, ContextInputs, check_budget, fixed_cost
from tape.core.context.fenced import summary_message
from tape.core.context.policy import STANDARD, Excluded, Item, Policy, Shaped, Standard, check_policy
from tape.core.context.weigh import Scale
from tape.core.context.window import Reached, Unbounded, reach
from tape.core.entries import payloads
from tape.core.entries.payloads import Payload, Place
from tape.core.memory.state import Block, BlockSpec, Slot, assemble, config_hash, current, render_prompt, usage_of
from tape.core.memory.state import Usage as Totals
from tape.core.messages.tokens import Counter, estimate
from tape.core.records import Anchor, Message
from tape.core.strict import RESERVED
from tape.core.summaries.compaction import Summary
from tape.core.summaries.runs import in_force
from tape.core.view.slots import BLOCKS_AND_PROMPT
from tape.db.engine.transaction import Transaction
from tape.db.read.reader import Reader, absent
from tape.db.read.window import PathWindow, Run
from tape.db.view.paths import Point, Row, Scope
from tape.errors import BudgetExceeded, Corrupt, InvalidEntry

__all__ = ["ContextReader", "Recalled", "Settings"]


class Settings(Struct, frozen=True):
    """What a store was opened with for all of its tapes: declared slots and blocks, and the token counter."""

    slots: dict[str, Slot] = {}
    blocks: list[BlockSpec] = []
    counter: Counter | None = None


class Recalled(Struct, frozen=True):
    """A recorded context, built again from its manifest: what the model saw then."""

    messages: list[dict[str, Any]]
    prompt: str | None
    anchor: Anchor | None
    manifest: dict[str, Any]
    checkpoint: str | None = None
    """What the anchor told the model, as it was rendered then; None when that was not recorded."""

    def to_openai(self, api: str = "chat") -> Any:
        """Return the request for OpenAI as it was; see ``Context.to_openai``."""
        return self._context().to_openai(api)

    def to_anthropic(self) -> dict[str, Any]:
        """Return the request to Anthropic as it was; see ``Context.to_anthropic``."""
        return self._context().to_anthropic()

    def _context(self) -> Context:
        """Return a context that shows the same, for rendering: one set of rules for what is and what was."""
        items = [Item(Message("", "", data, None, 0, 0, 0), 0) for data in self.messages]
        view = ContextInputs(items, self.anchor, [], [], self.prompt, False, 0, "", checkpoint=self.checkpoint)
        return Context(view, Shaped(items, []), STANDARD, None, Scale(None))


class ContextReader(Reader):
    """Reads for context, and the state, blocks, usage and summaries of a tape."""

    settings: Settings = Settings()

    def view(
        self, tape: str, point: Point, branch: str | None, budget: int | None = None, policy: Policy | None = None
    ) -> ContextInputs:
        """Return what a context of the tape is built from: all of it, or as much as the standard policy needs."""
        check_budget(budget)

        def work(tx: Transaction) -> ContextInputs:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, branch, point)
                blocks = assemble(self.settings.blocks, {}, self.settings.counter or estimate)
                return ContextInputs([], None, [], [], render_prompt(blocks) or None, False, 0, tape)
            end = self._end(tx, scope, branch)
            anchor, floor = self._anchor(tx, scope, end)
            prompt, stale = self._prompt(tx, scope)
            view = ContextInputs([], anchor, [], [], prompt, stale, scope.seq, tape)
            if anchor is not None:
                view.excluded.append(Excluded(anchor.tape, 1, anchor.seq, "before the anchor"))
            self._fill(tx, scope, end, floor, view, budget, _bounding(policy))
            return view

        return self._db.read(work)

    def _fill(
        self,
        tx: Transaction,
        scope: Scope,
        end: Place,
        floor: int,
        view: ContextInputs,
        budget: int | None,
        policy: Standard | None,
    ) -> None:
        """Put the messages below ``floor`` into a view: all, or as many as the policy needs for the budget."""
        held, out = in_force(self.compactions_on(tx, scope, end, floor))
        runs = [Run(one, self.summary_of(tx, scope, one)) for one in held if one.lo > floor]
        view.summaries = [run.summary for run in runs]
        standing = [(run.summary.tape, run.summary.seq) for run in runs]
        for revised, why in ((False, ""), (True, " or makes a call without its result")):
            gone = [(one.tape or scope.tape, one.seq) for one in out if one.revised == revised]
            view.excluded += _ranges(gone, standing, f"a message it covers was retracted{why}")
        scale = Scale(self.settings.counter)
        window = PathWindow(self, tx, scope, end, floor, runs, scale)
        reached = None
        if budget is not None and policy is not None:
            room = budget - fixed_cost(view, scale.count)
            if room < 0:
                # What is always shown is too large already, and the builder says so.
                return
            reached = self._reach(window, budget, room, policy, scale)
        if reached is None:
            view.items = self._items(tx, scope, end, floor, runs)
            view.excluded += [one for run in runs for one in window.summarised(run)]
            return
        view.items, view.gap, view.scale = [spot.item for spot in reached.spots], reached.gap, scale
        shown = {(item.message.tape, item.message.seq) for item in view.items if item.message.id.startswith(RESERVED)}
        view.excluded += [
            one for run in runs if (run.summary.tape, run.summary.seq) in shown for one in window.summarised(run)
        ]
        if reached.gap is not None:
            missing = [one for one in standing if one not in shown]
            view.excluded += _ranges(missing, sorted(shown), "over budget")
            before = reached.spots[reached.gap - 1] if reached.gap else None
            view.excluded += window.between(before, reached.first, reached.spots[reached.gap], "over budget")

    def _reach(self, window: PathWindow, budget: int, room: int, policy: Standard, scale: Scale) -> Reached | None:
        """Return what the policy needs of a window; None when that cannot be known without reading all of it."""
        try:
            return reach(window, policy, room, lambda message: scale.alone(message.data, 0))
        except Unbounded:
            return None
        except BudgetExceeded as error:
            raise BudgetExceeded(budget, error.tokens + budget - room) from None

    def _items(self, tx: Transaction, scope: Scope, end: Place, floor: int, runs: Sequence[Run]) -> list[Item]:
        """Return the messages below ``floor``, with summaries in the place of what they cover."""
        if not runs:
            return self._plain_items(tx, scope, self._path(tx, scope, end, floor))
        walk = self._walk(tx, scope, end, floor)
        items: list[Item] = []
        depth = max(floor, self._floor(tx, scope, end))
        for run in runs:
            items += self._plain_items(tx, scope, self._stretch(tx, scope, walk, depth, run.lo - 1))
            message = summary_message(run.summary, run.summary.stamp)
            items.append(Item(message, 0, False, run.summary.tape))
            if run.of.loose:
                # A message that the summary does not cover has come back into its run.
                covers = set(run.summary.covers)
                inside = self._plain_items(tx, scope, self._stretch(tx, scope, walk, run.lo - 1, run.hi))
                items += [item for item in inside if item.message.id not in covers]
            depth = run.hi
        items += self._plain_items(tx, scope, self._stretch(tx, scope, walk, depth, end.ordinal))
        return items

    def _stretch(self, tx: Transaction, scope: Scope, walk: list[tuple[Place, int]], low: int, high: int) -> list[Row]:
        """Return the rows of a path from one depth to another."""
        found: list[Row] = []
        if low >= high:
            return found
        for last, lo in reversed(walk):
            if last.ordinal > low and lo < high:
                stop = Place(last.lane, min(last.ordinal, high), last.tape)
                found += self._rows(tx, scope, stop, max(lo, low))
        return found

    def _plain_items(self, tx: Transaction, scope: Scope, rows: list[Row]) -> list[Item]:
        items: list[Item] = []
        messages = self._messages(tx, scope, rows)
        for row, message in zip(rows, messages, strict=True):
            body = scope.name(row[11]) if len(row) > 11 else message.tape
            items.append(Item(message, message.tokens, False, body))
        return items

    def _prompt(self, tx: Transaction, scope: Scope) -> tuple[str | None, bool]:
        """Return the frozen prompt or the one rendered now, and whether the configuration changed since."""
        # One range of names holds the blocks and the prompt.
        slots = self.slots_between(tx, scope, *BLOCKS_AND_PROMPT)
        frozen = next((payload for name, _, payload in slots if name == "prompt"), None)
        blocks = self._assemble(slots)
        if isinstance(frozen, payloads.Block) and frozen.text is not None:
            return frozen.text, frozen.config != config_hash(blocks)
        return (render_prompt(blocks) or None) if blocks else None, False

    def _assemble(self, slots: list[tuple[str, int, Payload]]) -> list[Block]:
        found = {name.removeprefix("block:"): (seq, entry) for name, seq, entry in slots if name.startswith("block:")}
        return assemble(self.settings.blocks, found, self.settings.counter or estimate)

    # -- what is remembered

    def blocks(self, tape: str, point: Point) -> list[Block]:
        """Return the blocks of a tape."""

        def work(tx: Transaction) -> list[Block]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                return self._assemble([])
            return self._assemble(self.slots(tx, scope, "block:"))

        return self._db.read(work)

    def frozen(self, tape: str) -> str | None:
        """Return the prompt that is frozen on a tape, or None."""

        def work(tx: Transaction) -> str | None:
            scope = self.scope(tx, tape)
            found = self.slot(tx, scope, "prompt") if scope is not None else None
            return found[1].text if found is not None and isinstance(found[1], payloads.Block) else None

        return self._db.read(work)

    def states(self, tape: str, point: Point, slot: str | None) -> dict[str, Any]:
        """Return the slots of state that hold something: all, or the one named."""

        def work(tx: Transaction) -> dict[str, Any]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                return {}
            if slot is None:
                rows = self.slots(tx, scope, "state:")
            else:
                one = self.slot(tx, scope, f"state:{slot}")
                rows = [] if one is None else [(f"state:{slot}", *one)]
            found = {}
            for name, _, payload in rows:
                bare = name.removeprefix("state:")
                if isinstance(payload, payloads.State) and payload.value is not UNSET:
                    found[bare] = current(payload, self.settings.slots.get(bare))
            return found

        return self._db.read(work)

    def usage(self, tape: str, point: Point) -> Totals:
        """Return the totals of a tape's own usage."""

        def work(tx: Transaction) -> Totals:
            scope = self.scope(tx, tape, point)
            found = self.slot(tx, scope, "usage", inherited=False) if scope is not None else None
            return Totals() if found is None else usage_of(found[1], tape, found[0])

        return self._db.read(work)

    def summaries(self, tape: str, point: Point) -> list[Summary]:
        """Return the summaries in force on the active path, shallowest first."""

        def work(tx: Transaction) -> list[Summary]:
            scope = self.scope(tx, tape, point)
            if scope is None:
                absent(tape, None, point)
                return []
            row = self.anchor_row(tx, scope, scope.head.place)
            floor = 0 if row is None else row[1]
            held, _ = in_force(self.compactions_on(tx, scope, scope.head.place, floor))
            return [self.summary_of(tx, scope, one) for one in held]

        return self._db.read(work)

    def recall(self, tape: str, seq: int) -> Recalled:
        """Return a recorded context as it was, from the entries that its manifest names."""

        def work(tx: Transaction) -> Recalled:
            scope = self.scope(tx, tape)
            row = tx.one(self._sql.body, (scope.id, seq)) if scope is not None else None
            entry = payloads.decode(row[0], row[1], row[2]) if row is not None and row[2] is not None else None
            if scope is None or not isinstance(entry, payloads.Event) or not _is_context(entry):
                raise InvalidEntry("seq", f"no context was recorded at seq {seq} of tape {tape!r}")
            told = _told(entry.data, tape, seq)
            messages: list[dict[str, Any]] = []
            for item in told.included:
                if isinstance(item, dict):
                    messages.append(item)
                    continue
                name, first, last = item
                number = scope.id if name == tape else _number(scope, name)
                for found in tx.all(self._sql.entries_after, (number, first - 1, last, last - first + 1)):
                    if found[8] is None:
                        raise Corrupt(name, found[2], "the payload was erased")
                    messages.append(payloads.body_of(found[3], found[11], found[8]).message)
            anchor = None
            if told.anchor is not None:
                name, at = told.anchor
                number = scope.id if name == tape else _number(scope, name)
                found_anchor = tx.one(self._sql.entry, (number, at))
                if found_anchor is not None:
                    anchor = self._anchor_at(tx, scope, name, found_anchor)
                    if told.stale is not None:
                        anchor = msgspec.structs.replace(anchor, stale=told.stale)
            return Recalled(messages, told.prompt, anchor, entry.data, told.checkpoint)

        return self._db.read(work)


CONTEXT = "tape.context"
"""The event that records a context's manifest."""


def _bounding(policy: Policy | None) -> Standard | None:
    """Return a policy that is known to need only the ends of a branch; one with a shape of its own gets all of it."""
    chosen = STANDARD if policy is None else check_policy(policy)
    return chosen if isinstance(chosen, Standard) and type(chosen).shape is Standard.shape else None


def _is_context(entry: payloads.Event) -> bool:
    """Whether an event holds a manifest; anyone may record an event of that name, and a file may hold anything."""
    data = entry.data
    if entry.name != CONTEXT or not isinstance(data, dict) or not {"included", "anchor", "prompt"} <= data.keys():
        return False
    included, anchor = data["included"], data["anchor"]
    if not isinstance(included, list) or not (anchor is None or _names(anchor, 1)):
        return False
    return all(isinstance(item, dict) or (_names(item, 2) and item[1] <= item[2]) for item in included)


def _names(value: Any, seqs: int) -> bool:
    """Whether a value is the name of a tape with so many seqs."""
    if not isinstance(value, list) or len(value) != seqs + 1 or type(value[0]) is not str:
        return False
    return all(type(seq) is int and 0 < seq < strict.MAX_INT for seq in value[1:])


def _number(scope: Scope, name: str) -> int:
    if scope.family is None:
        raise Corrupt(name, 0, "the tape is not an ancestor")
    return scope.family.number(name)


class _Told(Struct):
    """What of a recorded manifest is needed to build the context again."""

    included: list[dict[str, Any] | tuple[str, int, int]]
    prompt: str | None
    anchor: tuple[str, int] | None
    checkpoint: str | None = None
    """None in a manifest that was recorded before it was kept: then it is rendered from the anchor."""
    stale: bool | None = None


def _told(data: Any, tape: str, seq: int) -> _Told:
    try:
        return msgspec.convert(data, _Told)
    except msgspec.ValidationError as error:
        raise InvalidEntry("seq", f"the entry at seq {seq} of tape {tape!r} holds no manifest: {error}") from None


def _ranges(entries: Sequence[tuple[str, int]], shown: Sequence[tuple[str, int]], why: str) -> list[Excluded]:
    """Return entries that make summaries as ranges, none of which holds one that is shown."""
    found: list[Excluded] = []
    for tape, seq in sorted(entries):
        last = found[-1] if found else None
        if last is not None and last.tape == tape and not any((tape, last.first) < one < (tape, seq) for one in shown):
            found[-1] = Excluded(tape, last.first, seq, why)
        else:
            found.append(Excluded(tape, seq, seq, why))
    return found
