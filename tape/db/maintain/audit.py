"""Verifying and rebuilding: the entries are the truth, and the view must be what folding them gives."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import msgspec

from tape.core.entries import chain, payloads
from tape.core.entries.payloads import Place
from tape.core.records import Problem, Receipt, Report
from tape.core.transfer.citations import Citation, cited_by
from tape.core.view.fold import Head
from tape.core.view.in_memory import View
from tape.db.engine.log import log
from tape.db.engine.transaction import Again, Collision, Database, Lost, Transaction
from tape.db.maintain.audit_index import IndexAudit
from tape.db.maintain.audit_strays import strays
from tape.db.read.reader import Reader
from tape.db.record.projection import (
    call_key,
    fork_values,
    set_labels,
    set_name,
    set_redirect,
    set_status,
    tape_of,
)
from tape.db.record.recorder import Recorder
from tape.db.record.writing import head_values
from tape.db.sql.rows import HEAD_COLUMNS
from tape.db.transfer.citing import contradicted
from tape.db.view.lineage import Family, Member, place_at
from tape.db.view.paths import Scope
from tape.db.view.rows import any_text
from tape.errors import Corrupt, InvalidEntry, StoreBusy, StoreFailed, TapeNotFound

__all__ = ["Progress", "check_receipt", "in_view", "rebuild", "verify"]

_PAGE = 1_000
Progress = Callable[[int, int], None]
"""Called with the entries done and the entries there are."""


_IN_VIEW = ("a row of ", "the head is not ", "the head is missing", "the status is not ", "name, labels or redirect ")
"""How a problem begins that lies in the view alone."""


def in_view(problem: Problem) -> bool:
    """Whether the entries are sound and only the view is not, so that ``rebuild`` mends it."""
    return problem.what.startswith(_IN_VIEW)


class _Meter:
    """Counts the entries that were read and tells whoever waits."""

    def __init__(self, database: Database, reader: Reader, tape: str | None, progress: Progress | None) -> None:
        self._progress = progress
        self._done = 0
        self._total = 0 if progress is None else database.read(lambda tx: _entries(tx, reader, tape))

    def add(self, count: int) -> None:
        """Tell of ``count`` more; what was written since the beginning makes the whole larger."""
        self._done += count
        if self._progress is not None:
            self._total = max(self._total, self._done)
            self._progress(self._done, self._total)


def _entries(tx: Transaction, reader: Reader, tape: str | None) -> int:
    """Return how many entries one tape has, or all that the owner can see."""
    if tape is not None:
        row = reader.row(tx, tape)
        return 0 if row is None else int(row[6])
    owner = reader.owner
    rows = tx.all(tx.statements.counts, ()) if owner is None else tx.all(tx.statements.counts_of, (owner,))
    return sum(int(row[2]) for row in rows)


def _names(database: Database, reader: Reader) -> Iterator[str]:
    """Yield the ids of all tapes that the owner can see."""
    after = ""
    while True:
        rows = database.read(lambda tx, after=after: tx.all(tx.statements.tape_names, (after,)))  # type: ignore[misc]
        if not rows:
            return
        for (name,) in rows:
            if database.read(partial(_row, reader, name)) is not None:
                yield name
        after = rows[-1][0]


def _row(reader: Reader, tape: str, tx: Transaction) -> Any:
    """Return the row of a tape that the owner sees, also of one whose head is missing."""
    row = tx.one(tx.statements.tape_row, (tape,))
    hidden = row is None or row[2] == "purged" or (reader.owner is not None and row[1] != reader.owner)
    return None if hidden else row


def check_receipt(against: Any, tape: str | None) -> None:
    """Raise InvalidEntry unless ``against`` is a receipt, and of the one tape that is verified, if it is one."""
    of, seq, hash = (getattr(against, name, None) for name in ("tape", "seq", "hash"))
    if not isinstance(of, str) or type(seq) is not int or not isinstance(hash, str):
        raise InvalidEntry("against", f"must be a receipt, not a {type(against).__name__}")
    if tape is not None and tape != of:
        raise InvalidEntry("against", f"is a receipt of tape {of!r}, not of {tape!r}")


def verify(
    database: Database,
    reader: Reader,
    tape: str | None,
    against: Receipt | None,
    now: int,
    progress: Progress | None = None,
) -> Report:
    """Check one tape or all."""
    meter = _Meter(database, reader, tape, progress)
    sound: list[tuple[int, int, bytes]] = []
    problems: list[Problem] = []
    erased: list[Problem] = []
    tapes = entries = 0
    missing = against
    index = IndexAudit(database)
    if tape is None:
        problems += database.read(lambda tx: strays(tx, reader.owner))
        problems += index.whole() if reader.owner is None else []
    for name in [tape] if tape is not None else _names(database, reader):
        receipt = against if against is not None and against.tape == name else None
        missing = None if receipt is not None else missing
        # A check of its own for every run: a read whose connection breaks is run again.
        try:
            check = database.read(partial(_check, reader, name, meter, receipt))
        except Corrupt as error:
            # What even the check cannot read is a fault of this tape and of no other.
            problems.append(Problem(name, error.seq, error.what))
            tapes += 1
            continue
        told = check.problems if check.broken else [*check.problems, *index.tape(name, check.number)]
        problems += sorted(told, key=lambda problem: problem.seq)
        erased += check.erased
        tapes += 1
        entries += check.entries
        if not check.problems and check.last is not None:
            sound.append(check.last)
    if missing is not None and not database.read(lambda tx: _purged(tx, reader, missing.tape)):
        problems.append(Problem(missing.tape, 1, f"the receipt is for seq {missing.seq}, the whole tape is missing"))
    _note(database, sound, now)
    return Report(problems, tapes, entries, erased)


def _purged(tx: Transaction, reader: Reader, tape: str) -> bool:
    """Whether a tape of this owner was purged, so that it is rightly gone."""
    owners = [row[1] for row in tx.all(tx.statements.tombstone, (tape,))]
    return any(reader.owner in (None, owner) for owner in owners)


def _note(database: Database, sound: list[tuple[int, int, bytes]], now: int) -> None:
    """Keep up to where each tape was found intact; a database that cannot be written is verified all the same."""

    def work(tx: Transaction) -> None:
        tx.many(tx.statements.drop_check, [(number,) for number, _, _ in sound])
        tx.many(tx.statements.insert_check, [(number, seq, hash, now) for number, seq, hash in sound])

    if sound:
        with contextlib.suppress(StoreBusy, StoreFailed, Collision, Again, Lost):
            database.write("", work)


def _check(reader: Reader, tape: str, meter: _Meter, receipt: Receipt | None, tx: Transaction) -> _Check:
    check = _Check(tape, meter)
    check.run(tx, reader, receipt)
    return check


class _Check:
    """One tape's verification."""

    def __init__(self, tape: str, meter: _Meter) -> None:
        self.tape = tape
        self._meter = meter
        self.problems: list[Problem] = []
        self.erased: list[Problem] = []
        self.entries = 0
        self.number = 0
        self.broken = True
        """Whether the entries are not all sound, so that nothing can be compared with them."""
        self.last: tuple[int, int, bytes] | None = None
        """The tape's number, its last seq and the hash there."""
        self.view = View()
        self.cited: list[Citation] = []
        """What the entries cite of other tapes."""

    def wrong(self, seq: int, what: str) -> None:
        self.problems.append(Problem(self.tape, seq, what))

    def run(self, tx: Transaction, reader: Reader, receipt: Receipt | None) -> None:
        scope = _scope(tx, reader, self.tape)
        self.number = scope.id
        with any_text(tx):
            if self._chain(tx, scope, receipt):
                self.broken = False
                try:
                    self._compare(tx, scope)
                except Corrupt as error:
                    # Most likely an ancestor is gone. The other tapes are verified all the same.
                    self.wrong(1, f"the view cannot be compared with the entries: {error}")

    def _chain(self, tx: Transaction, scope: Scope, receipt: Receipt | None) -> bool:
        """Recompute the hashes and fold the entries; tells whether every one could be folded."""
        before, last, whole = chain.ZERO, 0, True
        erasures: dict[int, bytes] | None = None
        while True:
            rows = tx.all(tx.statements.entries_after, (scope.id, last, 2**62, _PAGE))
            if not rows:
                break
            for row in rows:
                seq, kind, key = row[2], row[3], row[4]
                self.entries += 1
                if seq != last + 1:
                    self.wrong(last + 1, f"entries {last + 1} to {seq - 1} are missing")
                    whole = False
                last = seq
                raw = row[8]
                if raw is None:
                    erasures = _erasures(tx, scope) if erasures is None else erasures
                    digest = erasures.get(seq, b"")
                    if not digest:
                        self.wrong(seq, "the payload is gone and no erase entry accounts for it")
                    else:
                        self.erased.append(Problem(self.tape, seq, "erased"))
                    whole = False
                source: Any = None if row[6] is None and row[7] is None else (row[6], row[7])
                place = _recorded_place(row, scope)
                try:
                    hash = bytes(memoryview(row[12]))
                    if raw is not None:
                        digest = chain.digest(raw)
                    expected = chain.link(
                        before, digest, self.tape, seq, kind, key, row[5], source, row[9], row[10], row[11], place
                    )
                except (TypeError, ValueError):
                    # SQLite holds text where bytes belong, and bytes that are no text, without a word.
                    self.wrong(seq, "the entry holds a value that was never written there")
                    before, whole = b"", False
                    continue
                if expected != hash:
                    self.wrong(seq, "the hash does not match the entry")
                    # Folding what was tampered with would put blame on rows that are right.
                    whole = False
                if receipt is not None and receipt.seq == seq and receipt.hash != hash.hex():
                    self.wrong(
                        seq,
                        "the entry is not the one that the receipt was given for: the chain was recomputed",
                    )
                before = hash
                self.last = (scope.id, seq, hash)
                if raw is not None and whole:
                    whole = self._fold(seq, hash, row, place)
            self._meter.add(len(rows))
        if last != scope.head.seq:
            stands = f"at {scope.head.seq}" if scope.head.seq else "missing"
            self.wrong(min(last, scope.head.seq) + 1, f"the head is {stands}, the entries end at {last}")
            whole = False
        if receipt is not None and receipt.seq > last:
            self.wrong(
                last + 1,
                f"the receipt is for seq {receipt.seq}, the entries end at {last}: the end was cut off",
            )
        return whole

    def _fold(self, seq: int, hash: bytes, row: Any, place: Place) -> bool:
        try:
            payload = payloads.decode(row[3], row[11], row[8])
            self.view.fold(seq, hash, row[10], place, row[4], payload)
            cited = cited_by(self.tape, seq, payload)
            if cited is not None:
                self.cited.append(cited)
        except (Corrupt, KeyError, TypeError) as error:
            self.wrong(seq, f"the entry cannot be folded: {error}")
            return False
        return True

    def _compare(self, tx: Transaction, scope: Scope) -> None:
        """Compare every row of the view with what the fold gives."""
        row = tx.one(tx.statements.head, (self.tape,))
        if row is None or _plain(row[len(row) - len(HEAD_COLUMNS) :]) != head_values(self.view.head, scope.family):
            self.wrong(scope.head.seq, "the head is not what the entries give")
        if (self.view.head.status, self.view.head.reason, self.view.head.completed) != (
            scope.head.status,
            scope.head.reason,
            scope.head.completed,
        ):
            self.wrong(scope.head.seq, "the status is not what the entries give")
        expected = rows_of(self.view, scope)
        for name, statement in tx.statements.dump.items():
            stored = {_plain(one) for one in tx.all(statement, (scope.id,))}
            for one in sorted(stored ^ expected[name], key=repr):
                seq = _seq_of(name, one)
                which = "is not what the entries give" if one in stored else "is missing"
                self.wrong(seq, f"a row of {name} {which}")
        self._graph(tx, scope)
        opening = tx.one(tx.statements.entry, (scope.id, 1))
        facts = tx.one(tx.statements.info, (self.tape,))
        if facts is not None:
            labels = msgspec.json.encode(self.view.labels) if self.view.labels else None
            if (facts.name, facts.labels, facts.redirect) != (self.view.name, labels, self.view.redirect):
                self.wrong(scope.head.seq, "name, labels or redirect are not what the entries give")
        if opening is not None and facts is not None and opening[8] is not None:
            payload = payloads.decode(opening[3], opening[11], opening[8])
            if isinstance(payload, payloads.Open) and (payload.owner, payload.agent) != (facts[2], facts[3]):
                self.wrong(1, "owner or agent are not those that the tape was opened with")
            if (opening[9], opening[10]) != (facts[6], facts[9]):
                self.wrong(1, "meta or creation time are not those that the tape was opened with")

    def _graph(self, tx: Transaction, scope: Scope) -> None:
        """Check every hash that the tape's entries cite of other tapes, so that a family verifies as one graph."""
        came = tx.one(tx.statements.imported, (scope.id,))
        for cited in [*self._forked_from(), *self.cited]:
            row = tx.one(tx.statements.head, (cited.tape,))
            found = tx.one(tx.statements.entry, (row[0], cited.seq)) if row is not None else None
            if row is not None and row[2] == "purged":
                continue
            if found is not None and bytes(found[12]).hex() == cited.hash:
                continue
            if tx.one(tx.statements.tombstone, (cited.tape,)) is not None:
                # The tape that was cited is gone, and another has its id.
                continue
            imported = cited.kind != "open" and came is not None and cited.by_seq <= came[0]
            if imported and not contradicted(tx, cited):
                # It was imported without the tapes that it tells of, or without those parts of them: what is there now
                # was written here.
                continue
            if found is None:
                self.wrong(cited.by_seq, f"cites seq {cited.seq} of tape {cited.tape!r}, which is not there")
            else:
                self.wrong(cited.by_seq, f"cites another seq {cited.seq} of tape {cited.tape!r} than there is")

    def _forked_from(self) -> list[Citation]:
        """Return what the first entry of a fork cites of its parent."""
        point = self.view.fork[0] if self.view.fork is not None else None
        if point is None or not point.seq:
            return []
        return [Citation(self.tape, 1, "open", False, point.tape, point.seq, point.hash)]


def _scope(tx: Transaction, reader: Reader, tape: str) -> Scope:
    """Return a tape with its lineage as its first entry tells it, since the rows of the view are what is in doubt."""
    row = _row(reader, tape, tx)
    if row is None:
        raise TapeNotFound(tape)
    head = Head.blank(b"")
    head.seq, head.status, head.reason, head.completed = row[5], row[2], row[3], row[4] or 0
    family = None
    opening = tx.one(tx.statements.entry, (row[0], 1))
    with contextlib.suppress(Corrupt, TypeError):
        payload = (
            payloads.decode(opening.kind, opening.version, opening.payload or b"") if opening is not None else None
        )
        if isinstance(payload, payloads.Open) and payload.parent is not None:
            family = Family(
                [
                    Member(found[0], layer.tape, layer.asof, layer.cleared, layer.overriding)
                    for layer in payload.parent.layers
                    if (found := tx.one(tx.statements.tape_row, (layer.tape,))) is not None
                ]
            )
    return Scope(tape, row[0], head.seq, True, head, None, family)


def _recorded_place(row: Any, scope: Scope) -> Place:
    """Return the place in an entry's row; a tape that is no ancestor is kept as it is, so that the hash tells."""
    try:
        return place_at(row[14], row[15], row[13], scope.family)
    except Corrupt:
        return Place(row[14], row[15], str(row[13]))


def _plain(row: Any) -> tuple[Any, ...]:
    """Return a row with its bytes as bytes, whatever the driver made of them."""
    return tuple(bytes(value) if isinstance(value, memoryview) else value for value in row)


def _erasures(tx: Transaction, scope: Scope) -> dict[int, bytes]:
    """Return the digests of erased payloads, as their erase entries record them."""
    found: dict[int, bytes] = {}
    last = 0
    while rows := tx.all(tx.statements.entries_after, (scope.id, last, 2**62, _PAGE)):
        last = rows[-1][2]
        for row in rows:
            if row[3] == "erase" and row[8] is not None:
                # One that cannot be read accounts for nothing; the check of its hash names it.
                with contextlib.suppress(Corrupt, ValueError):
                    payload = payloads.decode(row[3], row[11], row[8])
                    if isinstance(payload, payloads.Erase):
                        found[row.source_seq or 0] = bytes.fromhex(payload.digest)
    return found


def _seq_of(table: str, row: tuple[Any, ...]) -> int:
    """Return the seq that a row of the view goes back to."""
    if table in ("tape_forks", "tape_labels"):
        return 1
    index = {
        "tape_live": 3,
        "tape_past": 2,
        "tape_lanes": 0,
        "tape_aliases": 1,
        "tape_calls": 1,
        "tape_answers": 3,
        "tape_anchors": 0,
        "tape_clears": 0,
        "tape_slots": 1,
        "tape_overrides": 3,
        "tape_compactions": 2,
    }[table]
    return row[index] if isinstance(row[index], int) else 0


def rows_of(view: View, scope: Scope) -> dict[str, set[tuple[Any, ...]]]:
    """Return the rows that the tables must hold for a view, each without the tape's number."""
    family = scope.family

    def at(place: Place) -> int:
        return tape_of(place, family)

    forks = set()
    if view.fork is not None and family is not None:
        point, state, merged, merge_seq = view.fork
        forks.add(fork_values(scope.id, point, family, state, merged, merge_seq)[1:])
    return {
        "tape_forks": forks,
        "tape_compactions": {
            (
                0 if tape is None or family is None else family.number(tape),
                seq,
                since,
                at(row.place),
                row.place.lane,
                row.place.ordinal,
                row.lo,
                row.gone,
                int(row.revised),
                int(row.loose),
                row.until,
            )
            for (tape, seq, since), row in view.compactions.items()
        },
        "tape_overrides": {
            (
                at(place),
                place.lane,
                place.ordinal,
                since,
                row.placed,
                0 if row.body is None else scope.id if row.of is None or family is None else family.number(row.of),
                row.body,
                row.until,
                row.why,
            )
            for (place, since), row in view.overrides.items()
        },
        "tape_live": {(lane, ordinal, row.placed, row.since, row.body) for (lane, ordinal), row in view.live.items()},
        "tape_past": {
            (lane, ordinal, since, row.placed, row.body, row.until, row.why)
            for (lane, ordinal, since), row in view.past.items()
        },
        "tape_lanes": {(lane, at(base), base.lane, base.ordinal) for lane, base in view.lanes.items()},
        "tape_aliases": set(view.aliases.items()),
        "tape_calls": {(call_key(call), seq, place.lane, place.ordinal, at(place)) for call, seq, place in view.calls},
        "tape_answers": {
            (at(maker), maker.lane, maker.ordinal, place.lane, place.ordinal, call_key(call))
            for maker, call, place in view.answers
        },
        "tape_anchors": {
            (seq, name, at(place), place.lane, place.ordinal) for seq, (name, place) in view.anchors.items()
        },
        "tape_clears": {
            (seq, at(row.place), row.place.lane, row.place.ordinal, row.hidden, int(row.touched), row.until)
            for seq, row in view.clears.items()
        },
        "tape_labels": {(label,) for label in view.labels},
        "tape_slots": {(slot, since, until) for (slot, since), until in view.slots.items()},
    }


def rebuild(
    database: Database,
    reader: Reader,
    recorder: Recorder,
    tape: str | None,
    progress: Progress | None = None,
    skipped: list[Problem] | None = None,
) -> int:
    """Replace the view of one tape or of all by what their entries give; one transaction per tape.

    Of all, one whose entries cannot be read keeps the view that it has and is added to ``skipped``.
    """
    meter = _Meter(database, reader, tape, progress)
    count = 0
    if tape is None and reader.owner is None:
        database.repeat("", _sweep)
    for name in [tape] if tape is not None else _names(database, reader):
        try:
            meter.add(
                recorder.several([name], "rebuild", lambda tx, _, name=name: _rebuild(tx, reader, name))  # type: ignore[misc]
            )
        except Corrupt as error:
            if tape is not None:
                raise
            log.error("tape.unreadable", tape=name, seq=error.seq, what=error.what)
            if skipped is not None:
                skipped.append(Problem(name, error.seq, error.what))
            continue
        recorder.forget(name)
        log.info("tape.rebuilt", tape=name)
        count += 1
    return count


def _sweep(tx: Transaction) -> None:
    """Take away rows of the view that belong to no tape, or to one that was purged."""
    for statement in tx.statements.sweep_view:
        tx.run(statement, ())


def _rebuild(tx: Transaction, reader: Reader, tape: str) -> int:
    """Make one view anew; returns how many entries it was made from."""
    scope = _scope(tx, reader, tape)
    view = View()
    last = 0
    while rows := tx.all(tx.statements.entries_after, (scope.id, last, 2**62, _PAGE)):
        for row in rows:
            seq = row[2]
            if row[8] is None:
                raise Corrupt(tape, seq, "the payload is gone, so the view cannot be made again")
            try:
                payload = payloads.decode(row[3], row[11], row[8])
                view.fold(
                    seq, bytes(row[12]), row[10], place_at(row[14], row[15], row[13], scope.family), row[4], payload
                )
            except (Corrupt, KeyError, TypeError, ValueError) as error:
                what = error.what if isinstance(error, Corrupt) else str(error)
                raise Corrupt(tape, seq, f"the entry cannot be folded: {what}") from error
            last = seq
    for statement in tx.statements.wipe:
        tx.run(statement, (scope.id,))
    inserts = {
        "tape_live": tx.statements.open_row,
        "tape_past": tx.statements.insert_past,
        "tape_lanes": tx.statements.insert_lane,
        "tape_aliases": tx.statements.insert_alias,
        "tape_calls": tx.statements.insert_call,
        "tape_answers": tx.statements.insert_answer,
        "tape_anchors": tx.statements.insert_anchor,
        "tape_clears": tx.statements.insert_clear,
        "tape_slots": tx.statements.insert_slot,
        "tape_forks": tx.statements.insert_fork,
        "tape_overrides": tx.statements.insert_override,
        "tape_labels": tx.statements.insert_label,
        "tape_compactions": tx.statements.insert_compaction,
    }
    for name, found in rows_of(view, scope).items():
        tx.many(inserts[name], [(scope.id, *row) for row in found])
    values = head_values(view.head, scope.family)
    if not tx.run(tx.statements.set_head, (*values, scope.id)):
        tx.run(tx.statements.create_head, (scope.id, *values))
    set_status(tx, scope.id, view.head)
    set_name(tx, scope.id, view.name)
    set_redirect(tx, scope.id, view.redirect)
    set_labels(tx, scope.id, view.labels)
    return last
