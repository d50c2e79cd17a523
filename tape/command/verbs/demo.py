"""Learning: the help of a command, and a short story on a real store."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING, Annotated, Any

import typer

import tape
from tape import demo as stories
from tape.command.exit_codes import USAGE, Failure
from tape.command.output import clean
from tape.command.registry import SECTIONS, app, command, one_of

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["demo", "help"]


@command("tape help", "tape help log", data=False)
def help(
    session: Session,
    name: Annotated[
        str | None,
        typer.Argument(
            metavar="[COMMAND]",
            help="The command to explain [default: list all commands].",
            autocompletion=one_of(*(name for names in SECTIONS.values() for name in names)),
        ),
    ] = None,
) -> None:
    """Show the help of a command, or list all commands."""
    from typer.main import get_command

    group: Any = get_command(app)
    if name is None:
        chosen, parent = group, None
    elif name in group.commands:
        chosen, parent = group.commands[name], group.make_context("tape", [], resilient_parsing=True)
    else:
        raise Failure(f"unknown command {name!r}", "see: tape help", USAGE)
    with chosen.make_context(name or "tape", [], parent=parent, resilient_parsing=True) as about:
        session.out.line(chosen.get_help(about))


@command("tape demo", "tape demo lisbon.db && tape --store lisbon.db log Lisbon --graph", data=False)
def demo(
    session: Session,
    path: Annotated[
        str | None,
        typer.Argument(metavar="[PATH]", help="Keep the demo store in this new file [default: a temporary file]."),
    ] = None,
) -> None:
    """Run a short demo on a real store."""
    from tape.db.engine.connect import is_memory

    if path is None:
        stories.main([])
        return
    # The store of the environment is not used: a demo must not write into a real store.
    place = type(session)(path, session.schema, None)
    state = place.look()
    file = place.url.get_backend_name() == "sqlite"
    if is_memory(place.url):
        raise Failure("the demo cannot be kept in memory", "name a file, or leave out PATH", USAGE)
    if state.revision is not None or (file and state.there):
        raise Failure(f"{place.shown!r} already exists", "name a new file for the demo")
    with tape.open(place.url, schema=place.schema) as store:
        session.out.line(f"tape {tape.__version__} demo, kept in {clean(place.shown)}")
        id = stories.story(store)
    session.out.note(f"\nnow try:  tape --store {shlex.quote(place.shown)} log {id} --graph")
