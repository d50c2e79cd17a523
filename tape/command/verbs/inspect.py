"""Looking at tapes in a browser: serve, open and report."""

from __future__ import annotations

import contextlib
import os
import re
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tape.command.exit_codes import USAGE, Failure, listening_on
from tape.command.output import clean as clean_text
from tape.command.output import progress
from tape.command.registry import command, complete_tape
from tape.command.verbs.move import check_target
from tape.core.amounts import count

if TYPE_CHECKING:
    from tape.command.session import Session
    from tape.web.stores import Served

__all__ = ["open_", "report", "serve"]

PortOption = Annotated[int, typer.Option(min=0, max=65535, help="The port to listen on; 0 picks a free one.")]
WriteOption = Annotated[
    bool, typer.Option("--write", help="Allow pages to fork, retract, restore, hand off and label.")
]


@command(
    "tape serve",
    "tape serve other.db third.db --port 8080",
    "tape serve --owner-header X-User --proxy 127.0.0.1 --allow-host tapes.example.com",
    data=False,
)
def serve(
    session: Session,
    stores: Annotated[
        list[str] | None, typer.Argument(metavar="[STORE]...", help="More stores to serve, each a path or a URL.")
    ] = None,
    port: PortOption = 8320,
    write: WriteOption = False,
    host: Annotated[str, typer.Option(help="The address to listen on.")] = "127.0.0.1",
    allow_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Also accept requests for this host name, with its port; may be repeated."),
    ] = None,
    owner_header: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The request header in which the proxy names the owner; needs --proxy."),
    ] = None,
    proxy: Annotated[
        str | None,
        typer.Option(
            metavar="ADDRESS", help="Accept requests only from this address: a proxy that authenticates users."
        ),
    ] = None,
) -> None:
    """Serve the inspector: web pages that show the tapes, read-only unless --write is given.

    The printed link works once. Open it in the browser you want to use.
    """
    if (owner_header is None) != (proxy is None):
        raise Failure("--owner-header and --proxy must be used together", "give both, or neither", USAGE)
    run = _web()

    def listening(url: str, token: str) -> None:
        print(f"{url}/{token}", file=sys.stderr, flush=True)

    with _served(session, stores or [], write) as served, listening_on(host, port):
        run(
            served, host=host, port=port, write=write, names=allow_host or (), proxy=proxy,
            owner_header=owner_header, listening=listening,
        )  # fmt: skip


@command("tape open chat-1", "tape open chat-1@12", data=False)
def open_(
    session: Session,
    tape_: Annotated[
        str,
        typer.Argument(metavar="TAPE[@SEQ]", help="The tape to open, or a point of it.", autocompletion=complete_tape),
    ],
    port: PortOption = 0,
    write: WriteOption = False,
    browser: Annotated[bool, typer.Option(help="Open a browser, or only print the link.")] = True,
) -> None:
    """Open a tape in the browser, and serve it until interrupted.

    If the browser may not read temporary files, open the printed link in it. The link works once.
    """
    run = _web()
    from tape.web.addresses import reference

    with _served(session, [], write) as served, tempfile.TemporaryDirectory(prefix="tape-") as private:
        named = session.address(served[0].store, tape_)
        place = reference(named.chat.id, None if named.point is None else named.view.info().head)
        redirect = Path(private, "open.html")

        def listening(url: str, token: str) -> None:
            link = f"{url}/t/{place}{token}"
            print(link, file=sys.stderr, flush=True)
            if browser:
                import webbrowser

                # All users of the machine see the arguments of a browser, but not this file.
                with open(os.open(redirect, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write(f'<!doctype html><meta http-equiv="refresh" content="0; url={link}">\n')
                webbrowser.open(redirect.as_uri())

        with listening_on("127.0.0.1", port):
            run(served, port=port, write=write, listening=listening, opened=lambda: redirect.unlink(missing_ok=True))


@command(
    "tape report chat-1",
    "tape report chat-1 chat-2 --output bug.html --redact 'sk-[A-Za-z0-9]+' --redact-field email",
    "tape report chat-1 --no-tool-output --output - | gzip > bug.html.gz",
    data=False,
)
def report(
    session: Session,
    tapes: Annotated[
        list[str], typer.Argument(metavar="TAPE...", help="The tapes to include.", autocompletion=complete_tape)
    ],
    output: Annotated[
        str | None,
        typer.Option(
            "--output", "-o", metavar="FILE", help="The file to write [default: TAPE.html]; - writes to stdout."
        ),
    ] = None,
    redact: Annotated[
        list[str] | None, typer.Option(metavar="REGEX", help="Remove text that matches; may be repeated.")
    ] = None,
    redact_field: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Remove the values of all fields with this name; may be repeated."),
    ] = None,
    tool_output: Annotated[
        bool, typer.Option("--tool-output/--no-tool-output", help="Include the results of tools, or remove them.")
    ] = True,
    force: Annotated[bool, typer.Option("--force", help="Overwrite an existing file.")] = False,
) -> None:
    """Write tapes to one self-contained HTML file, for example to attach to a bug report."""
    from tape.db.transfer.files import writing
    from tape.web.addresses import encode
    from tape.web.report.redact import Redaction
    from tape.web.report.report import write

    try:
        patterns = [re.compile(pattern) for pattern in redact or ()]
    except re.error as error:
        problem = f"--redact: invalid regular expression {str(error.pattern)!r}: {error}"
        raise Failure(problem, "use the syntax of Python's re module", USAGE) from None
    clean = Redaction(patterns, redact_field or (), tool_outputs=not tool_output)
    with session.open(read_only=True) as store:
        ids = [session.find(store, named).id for named in tapes]
        if output == "-":
            write(store, ids, sys.stdout.buffer.write, clean)
            return
        target = check_target(output or f"{encode(ids[0])}.html", force)
        with progress("writing") as bar, writing(target) as write_bytes:
            entries = write(store, ids, write_bytes, clean, bar)
    session.out.line(f"wrote {count(entries, 'entry')} of {count(len(ids), 'tape')} to {clean_text(str(target))}")


def _web() -> Callable[..., None]:
    try:
        from tape.web.serving import serve
    except ModuleNotFoundError as error:
        raise Failure(f"the package {error.name!r} is not installed", "run: pip install 'tape-store[web]'") from error
    return serve


@contextlib.contextmanager
def _served(session: Session, others: list[str], write: bool) -> Iterator[list[Served]]:
    """Open every store that is to be served."""
    from tape.web.stores import Served, named

    sessions = [session, *(type(session)(other, session.schema, session.owner) for other in others)]
    names = named(opener.shown for opener in sessions)
    with contextlib.ExitStack() as opened:
        yield [
            Served(name, opener.shown, opened.enter_context(opener.open(read_only=not write)), base)
            for opener, (name, base) in zip(sessions, names, strict=True)
        ]
