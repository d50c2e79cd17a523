"""Tending a store: verify, rebuild, purge, retain, migrate."""

from __future__ import annotations

import contextlib
import re
import sys
from typing import TYPE_CHECKING, Annotated

import typer

import tape
from tape.command.arguments import check_choice, span
from tape.command.exit_codes import DAMAGED, FAILED, NOT_FOUND, SCHEMA, USAGE, Failure
from tape.command.output import clean, progress
from tape.command.registry import command, complete_tape
from tape.command.show import json_shapes
from tape.command.verbs.find import STATUSES
from tape.core.amounts import count
from tape.core.records import IndexProblem, ViewProblem

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["migrate", "purge", "rebuild", "retain", "verify"]


_MOST = 20

AnyTape = Annotated[
    str | None, typer.Argument(metavar="[TAPE]", help="The tape [default: all tapes].", autocompletion=complete_tape)
]


@command(
    "tape verify",
    "tape verify chat-1",
    "tape verify chat-1 --seq 12 --hash 9f3c...",
    "tape verify --json | jq .problems",
)
def verify(
    session: Session,
    tape_: AnyTape = None,
    seq: Annotated[int | None, typer.Option(metavar="SEQ", min=1, help="The seq of a receipt to check.")] = None,
    hash: Annotated[str | None, typer.Option(metavar="HASH", help="The hash of that receipt.")] = None,
) -> None:
    """Check every hash and every stored row; exit with 4 if anything is damaged."""
    if (seq is None) != (hash is None):
        raise Failure("--seq and --hash must be used together", "give both, from the same receipt", USAGE)
    if seq is not None and tape_ is None:
        raise Failure("--seq and --hash check one tape", "name it as TAPE", USAGE)
    if hash is not None and not re.fullmatch("[0-9a-fA-F]{64}", hash):
        # A mistyped hash is no evidence of damage.
        raise Failure(f"--hash: {hash!r} is not a hash", "use all 64 hexadecimal digits of the receipt's hash", USAGE)
    with session.open(read_only=session.unwritable) as store, progress("verifying") as bar:
        id = None if tape_ is None else session.find(store, tape_).id
        receipt = None
        if id is not None and seq is not None and hash is not None:
            receipt = tape.Receipt(id, seq, "", None, hash.lower())
        report = store.verify(id, against=receipt, progress=bar)
    if session.out.as_json:
        session.out.json(
            {
                "ok": report.ok,
                "tapes": report.tapes,
                "entries": report.entries,
                "problems": [_problem_shape(problem) for problem in report.problems],
                "erased": [json_shapes.members(erased, "tape", "seq") for erased in report.erased],
            }
        )
    else:
        for problem in report.problems[:_MOST]:
            session.out.line([(f"{clean(problem.tape)}:{problem.seq}", "seq"), " ", (clean(problem.what), "bad")])
        if len(report.problems) > _MOST:
            session.out.line(f"... and {len(report.problems) - _MOST} more")
        verdict = "no problems" if report.ok else count(len(report.problems), "problem")
        session.out.line(f"{count(report.entries, 'entry')} of {count(report.tapes, 'tape')}: {verdict}")
    if not report.ok:
        if not session.out.as_json:
            session.out.note(session.with_store_options(_advice(report)))
        raise typer.Exit(DAMAGED)


def _problem_shape(problem: tape.Problem) -> dict[str, object]:
    return json_shapes.members(problem) | {"mend": "rebuild" if _derived(problem) else "restore"}


def _derived(problem: tape.Problem) -> bool:
    """Whether ``rebuild`` repairs the problem."""
    return isinstance(problem, ViewProblem | IndexProblem)


def _advice(report: tape.Report) -> str:
    if all(_derived(problem) for problem in report.problems):
        return "the entries are intact; repair the rest with: tape rebuild"
    return "entries are damaged; restore them from a backup or an export"


@command("tape rebuild chat-1", "tape rebuild --json")
def rebuild(session: Session, tape_: AnyTape = None) -> None:
    """Rebuild the messages and state of a tape from its entries; without TAPE also the search index."""
    with session.open() as store, progress("rebuilding") as bar:
        id = None if tape_ is None else session.find(store, tape_).id
        skipped: list[tape.Problem] = []
        done = store.rebuild(id, progress=bar, skipped=skipped.append)
    if session.out.as_json:
        session.out.json({"rebuilt": done})
    else:
        session.out.line(f"rebuilt {count(done, 'tape')}")
    if skipped:
        named = ", ".join(repr(problem.tape) for problem in skipped[:5]) + (", …" if len(skipped) > 5 else "")
        raise Failure(f"could not rebuild {clean(named)}: entries are damaged", "see: tape verify", DAMAGED)


_NAMED = 5
"""How many tapes a question names."""


def _confirm(question: str, yes: bool) -> None:
    """Ask before an irreversible action. Without a terminal nobody can answer, so --yes is required."""
    if yes:
        return
    if not sys.stdin.isatty():
        raise Failure("a purge cannot be undone, and there is no terminal to confirm it on", "add --yes", USAGE)
    if not typer.confirm(question, err=True):
        raise Failure("cancelled: nothing was purged", None, FAILED)


@command("tape purge chat-1", "tape purge chat-1 --forks --yes", "tape purge chat-1 --when-free")
def purge(
    session: Session,
    tape_: Annotated[
        str, typer.Argument(metavar="TAPE", help="The full id of the tape.", autocompletion=complete_tape)
    ],
    forks: Annotated[bool, typer.Option("--forks", help="Also purge its forks, and their forks.")] = False,
    when_free: Annotated[
        bool, typer.Option("--when-free", help="Hide it until no fork needs it, then purge it.")
    ] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """Delete a tape permanently, leaving a tombstone with its id, last seq and hash."""
    with session.open() as store:
        # The rest of an interrupted purge is invisible to every reader already, so it is finished without asking.
        with contextlib.suppress(tape.TapeNotFound):
            _confirm(_what_goes(store.purge(tape_, forks=forks, when_free=when_free, dry_run=True)), yes)
        purged = store.purge(tape_, forks=forks, when_free=when_free)
    _print_purged(session, purged, kept="hidden")


def _what_goes(planned: tape.Retention) -> str:
    """Return the question that names all that a purge would take, and what it would hide instead."""
    asked: list[str] = []
    if planned.tapes:
        names = ", ".join(map(repr, planned.tapes[:_NAMED])) + (", …" if len(planned.tapes) > _NAMED else "")
        several = len(planned.tapes) > 1
        subject = f"{count(len(planned.tapes), 'tape')} ({names})" if several else f"tape {names}"
        asked.append(f"purge {subject}, {count(planned.entries, 'entry')}")
    asked += [f"hide tape {name!r}, since {why}" for name, why in planned.kept.items()]
    question = "; ".join(asked)
    return f"{question[0].upper()}{question[1:]}?"


@command("tape retain --older-than 90d", "tape retain --older-than 30d --status completed --apply --yes")
def retain(
    session: Session,
    older_than: Annotated[
        str, typer.Option(metavar="SPAN", help="Purge tapes not written for this long: 12h, 30d, 8w.")
    ],
    status: Annotated[str | None, typer.Option(help="Purge only tapes with this status.")] = None,
    apply: Annotated[bool, typer.Option("--apply", help="Purge the tapes; without it they are only listed.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask for confirmation.")] = False,
) -> None:
    """List tapes that are old enough to purge; with --apply, purge them."""
    age = span(older_than)
    check_choice(status, STATUSES, "--status")
    with session.open(read_only=not apply) as store:
        if apply:
            planned = store.retain(older_than=age, status=status)
            _confirm(f"Purge {count(len(planned.tapes), 'tape')}, {count(planned.entries, 'entry')}?", yes)
        done = store.retain(older_than=age, status=status, dry_run=not apply)
    _print_purged(session, done)


def _print_purged(session: Session, done: tape.Retention, *, kept: str = "kept") -> None:
    if session.out.as_json:
        session.out.json(json_shapes.members(done, "dry_run", "tapes", "entries", "kept"))
        return
    for name in done.tapes:
        session.out.line(clean(name))
    for name, why in done.kept.items():
        session.out.line([(f"{kept} {clean(name)}: {clean(why)}", "quiet")])
    verb = "would purge" if done.dry_run else "purged"
    session.out.note(f"{verb} {count(len(done.tapes), 'tape')}, {count(done.entries, 'entry')}")


@command("tape migrate --check", "tape migrate", "tape --store new.db migrate --create")
def migrate(
    session: Session,
    check: Annotated[
        bool, typer.Option("--check", help="Only report; exit with 5 if there is something to do.")
    ] = False,
    create: Annotated[bool, typer.Option("--create", help="Create the store if it does not exist.")] = False,
) -> None:
    """Upgrade the schema of a store to this release, and restore missing guards."""
    from tape.db.engine.connect import is_memory
    from tape.db.maintain.inspect import missing_guards
    from tape.db.maintain.repair import restore_guards
    from tape.db.schema.tables import KNOWN, REVISION

    state = session.usable()
    if is_memory(session.url):
        raise session.absent(state)
    if state.revision is None and not create:
        raise Failure(str(session.absent(state)), "create a store there with: tape migrate --create", NOT_FOUND)
    steps = [revision for revision in KNOWN if state.revision is None or revision > state.revision]
    lacking: list[str] = []
    if not check:
        with tape.open(session.url, schema=session.schema, prefix=session.prefix), session.database() as database:
            lacking = restore_guards(database)
    elif state.current:
        with session.database(read_only=True) as database:
            lacking = missing_guards(database)
    if session.out.as_json:
        facts = {"found": state.revision, "known": REVISION, "steps": steps, "done": not check, "guards": lacking}
        session.out.json(facts)
    elif state.revision is None:
        session.out.line(f"{'would create' if check else 'created'} {clean(session.shown)} with schema {REVISION}")
    elif steps:
        session.out.line(f"schema {state.revision}, {'can be upgraded' if check else 'upgraded'} to {REVISION}")
    else:
        session.out.line(f"schema {REVISION} is up to date")
    if lacking and not session.out.as_json:
        session.out.line(f"{'missing guards:' if check else 'restored guards:'} {', '.join(lacking)}")
    if check and (steps or lacking):
        raise typer.Exit(SCHEMA)
