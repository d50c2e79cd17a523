"""Examining a store: every finding with its repair."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from tape.command.exit_codes import OK
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
    quick: Annotated[bool, typer.Option("--quick", help="Leave out what reads the whole store.")] = False,
    checkpoint: Annotated[
        bool, typer.Option("--checkpoint", help="Fold a long write-ahead log into its file.")
    ] = False,
) -> None:
    """Examine a store, from schema to search index, and name what mends each finding."""
    from tape.command.findings import examine, schema_finding
    from tape.db.maintain.repair import fold_wal

    state = session.look()
    if state.revision is None and state.damaged is None:
        raise session.absent()
    findings = [schema_finding(state)]
    if findings[0].level == "ok":
        # On a store that cannot be written, the time of the check is not recorded.
        reads = session.unwritable and not checkpoint
        with session.open(read_only=reads) as store, session.database(read_only=reads) as database:
            if checkpoint and not fold_wal(database, _PATIENCE):
                session.out.note("a reader keeps the write-ahead log: end it, then try again")
            with progress("examining") as bar:
                findings += examine(store, database, quick=quick, progress=bar)
    worst = max(finding.code for finding in findings)
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
                session.out.line([" " * 21, ("mend: ", "head"), clean(session.with_store_options(finding.mend))])
    if worst:
        raise typer.Exit(worst)
