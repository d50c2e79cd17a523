"""Examining a store: every finding with its repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tape.command.exit_codes import DAMAGED, OK, SCHEMA
from tape.command.output import clean, flat, progress
from tape.command.registry import command
from tape.command.show import json_shapes

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["doctor"]

_PATIENCE = 5.0
"""Seconds for which --checkpoint waits for readers."""


@command(
    "tape doctor",
    "tape doctor --quick --json | jq '.findings[] | select(.level != \"ok\")'",
    "tape doctor --checkpoint",
)
def doctor(
    session: Session,
    quick: Annotated[bool, typer.Option("--quick", help="Skip the checks that read the whole store.")] = False,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Fold a long write-ahead log into the store file.")
    ] = False,
) -> None:
    """Check a store for problems, and print how to fix each one."""
    from tape.db.maintain.repair import fold_wal
    from tape.handles.doctor import schema_finding

    state = session.look()
    if state.revision is None and state.damaged is None:
        raise session.absent(state)
    if state.current:
        # On a store that cannot be written, the time of the check is not recorded.
        reads = session.unwritable and not checkpoint
        with session.open(read_only=reads) as store, progress("examining") as bar:
            if checkpoint:
                with session.database(read_only=reads) as database:
                    if not fold_wal(database, _PATIENCE):
                        session.out.note("a long read is using the write-ahead log; end it, then run this again")
            findings = store.doctor(quick=quick, progress=bar)
    else:
        findings = [schema_finding(state)]
    wrong = any(finding.level == "error" for finding in findings)
    worst = OK if not wrong else DAMAGED if state.current or state.damaged is not None else SCHEMA
    if session.out.as_json:
        shown = [json_shapes.members(finding, "check", "level", "what", "mend") for finding in findings]
        session.out.json({"store": session.shown, "ok": worst == OK, "findings": shown})
    else:
        styles = {"ok": "good", "note": "", "warning": "warn", "error": "bad"}
        for finding in findings:
            session.out.line(
                [(f"{finding.level:<8}", styles[finding.level]), f"{finding.check:<13}", flat(finding.what)]
            )
            if finding.mend is not None:
                session.out.line([" " * 21, ("fix: ", "head"), clean(session.with_store_options(finding.mend))])
    if worst:
        raise typer.Exit(worst)
