"""Declaring commands: the options that all of them share, the examples in every help, and the call with a session.

A command's module is imported when the command is used, and it imports the store when the command runs. Help and
completion do not need the store.
"""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, cast

import typer
from typer.main import get_command

import tape
from tape.command.arguments import check_choice, json_object
from tape.command.exit_codes import USAGE, Failure, judge, words
from tape.command.loading import end_loading
from tape.command.output import COLORS
from tape.command.values import PlainCommand, PlainGroup

if TYPE_CHECKING:
    from tape.command.session import Session

__all__ = ["SECTIONS", "ReaderGone", "app", "command", "complete_tape", "declared", "one_of"]

SECTIONS: dict[str, dict[str, str]] = {
    "Find a tape": dict.fromkeys(("ls", "info", "search", "anchors", "tree", "stats"), "find"),
    "Read a tape": {"log": "log"}
    | dict.fromkeys(("show", "cat", "context", "diff", "follow"), "read")
    | {"replay": "replay", "blame": "blame"},
    "Write to a tape": dict.fromkeys(
        ("append", "retract", "handoff", "fork", "merge", "discard", "hide", "unhide"), "write"
    ),
    "Move and back up": dict.fromkeys(("export", "import", "backup"), "move"),
    "Maintain a store": dict.fromkeys(("verify", "rebuild", "purge", "retain", "migrate"), "maintain")
    | {"doctor": "doctor"},
    "View in a browser": dict.fromkeys(("serve", "open", "report"), "inspect"),
    "Replay a run": dict.fromkeys(("runs", "rerun", "check", "bisect"), "runs"),
    "Serve": {"mcp": "serve"},
    "Learn": {"help": "demo", "demo": "demo"},
}
"""The commands by what they are for, in the order of the help; each with its module under ``verbs``."""

_MODULES = {name: module for section in SECTIONS.values() for name, module in section.items()}


class _Declared(NamedTuple):
    """The declaration of a command: the function that Typer reads and calls, and the example calls in its help."""

    run: Callable[..., None]
    examples: Sequence[str]


_declared: dict[str, _Declared] = {}


def declared(name: str) -> _Declared:
    """Return the declaration of a command, importing its module if necessary."""
    if name not in _declared:
        importlib.import_module(f"tape.command.verbs.{_MODULES[name]}")
    return _declared[name]


class _Commands(Mapping[str, Any]):
    """Every command by its name, as Typer builds it. Building all of them takes longer than running most of them."""

    def __init__(self) -> None:
        self._made: dict[str, Any] = {}

    def __getitem__(self, name: str) -> Any:
        if name not in self._made and name in _MODULES:
            alone = typer.Typer(add_completion=False, rich_markup_mode=None, pretty_exceptions_enable=False)
            run, examples = declared(name)
            shown = "\n".join(["\b", "Examples:", *(f"  {line}" for line in examples)])
            alone.command(name, epilog=shown, cls=PlainCommand)(run)
            self._made[name] = made = cast(PlainCommand, get_command(alone))
            made.annotations = run.__annotations__
        return self._made[name]

    def __iter__(self) -> Iterator[str]:
        return iter(_MODULES)

    def __len__(self) -> int:
        return len(_MODULES)


class ReaderGone(Exception):
    """The reader of the output closed it. Typer would report a failure if it saw the BrokenPipeError itself."""


class _Sections(PlainGroup):
    """The list of commands, by sections."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        self.commands: Any = _Commands()
        self.annotations = inspect.get_annotations(tape_command, eval_str=True)

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the names of all commands, without making them."""
        return list(self.commands)

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        """Write the commands of each section with the first sentence of their help."""
        for title, names in SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, self.commands[name].get_short_help_str(100)) for name in names])


app = typer.Typer(
    name="tape",
    cls=_Sections,
    add_completion=True,
    invoke_without_command=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
    epilog="\b\nOptions and examples:        tape COMMAND --help\nExit codes and JSON output:  docs/command.md",
)

_STORE = typer.Option("--store", "-s", metavar="PATH|URL", help="The store to use [default: $TAPE_STORE, or tape.db].")
_SCHEMA = typer.Option("--schema", metavar="NAME", help="The PostgreSQL schema of the store [default: $TAPE_SCHEMA].")
_OWNER = typer.Option("--owner", metavar="NAME", help="See and write only this owner's tapes [default: $TAPE_OWNER].")
_JSON = typer.Option("--json", help="Print JSON; docs/command.md lists the members.")
_DEBUG = typer.Option("--debug", help="Print log messages, and a traceback for an error.")
_COLOR = typer.Option(
    "--color",
    metavar="WHEN",
    help="When to use color: auto, always or never [default: $NO_COLOR, $FORCE_COLOR, or auto].",
    autocompletion=lambda incomplete: [when for when in COLORS if when.startswith(incomplete)],
)
_NO_PAGER = typer.Option("--no-pager", help="Do not use the pager ($TAPE_PAGER, $PAGER, or less).")


_PLACE = ("store", "schema", "owner")
"""The options that select the store and the owner."""
_LOOK = ("color", "no_pager")
"""The options for the look of the output."""


def _version(asked_for: bool) -> None:
    if asked_for:
        typer.echo(f"tape {tape.__version__}")
        raise typer.Exit


@app.callback()
def tape_command(
    context: typer.Context,
    store: Annotated[str | None, _STORE] = None,
    schema: Annotated[str | None, _SCHEMA] = None,
    owner: Annotated[str | None, _OWNER] = None,
    color: Annotated[str | None, _COLOR] = None,
    no_pager: Annotated[bool, _NO_PAGER] = False,
    debug: Annotated[bool, _DEBUG] = False,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    """Inspect the history of AI agents: find, read, replay, compare, share and verify tapes."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())
        raise typer.Exit(USAGE)
    place = {"store": store, "schema": schema, "owner": owner}
    context.obj = place | {"color": color, "no_pager": no_pager}


def complete_tape(context: typer.Context, incomplete: str) -> list[str]:
    """Return the addresses that begin with the word being typed; none when the store cannot be read."""
    from tape.command.addresses import suggest
    from tape.command.session import Session

    above = (context.parent.params if context.parent is not None else {}) or {}
    options: dict[str, Any] = {name: context.params.get(name) or above.get(name) for name in _PLACE}
    try:
        with Session(**options).open(read_only=True) as store:
            return suggest(store, incomplete)
    except Exception:
        # A shell that completes must never see a traceback.
        return []


def one_of(*values: str) -> Callable[[str], list[str]]:
    """Return the shell completion of an option that takes one of these values."""
    return lambda incomplete: [value for value in values if value.startswith(incomplete)]


def _parameter(name: str, kind: Any, option: Any, default: Any = None) -> inspect.Parameter:
    annotation = Annotated[kind, option]
    return inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, annotation=annotation, default=default)


_SHARED = [
    _parameter("store", str | None, _STORE),
    _parameter("schema", str | None, _SCHEMA),
    _parameter("owner", str | None, _OWNER),
    _parameter("as_json", bool, _JSON, False),
    _parameter("color", str | None, _COLOR),
    _parameter("no_pager", bool, _NO_PAGER, False),
    _parameter("debug", bool, _DEBUG, False),
]
_KEY = typer.Option("--key", help="Provenance key: a write with the same key and content is recorded once.")
_HEAD = typer.Option("--expected-head", metavar="SEQ", min=0, help="Fail unless SEQ is the last entry of the tape.")
_VIEW = typer.Option("--expected-view", metavar="SEQ", min=0, help="Fail if the messages changed after SEQ.")
_WRITING = [
    _parameter("key", str | None, _KEY),
    _parameter("actor", str | None, typer.Option("--actor", help="Record who caused the entry.")),
    _parameter("meta", str | None, typer.Option("--meta", metavar="JSON", help="Extra facts to store with the entry.")),
    _parameter("expected_head", int | None, _HEAD),
    _parameter("expected_view", int | None, _VIEW),
]
"""The options of commands that write. A command gets them as one dict, which it passes on to the call."""


_LARGEST = 2**63 - 1
"""The largest number that a database holds."""


def _check_numbers(context: typer.Context, arguments: dict[str, Any]) -> None:
    """Raise Failure for a number that no database can hold."""
    for parameter in context.command.params:
        value = arguments.get(parameter.name or "")
        if isinstance(value, int | float) and not abs(value) <= _LARGEST:
            written = parameter.opts[0]
            title = written if written.startswith("-") else written.upper()
            shown = str(value) if len(str(value)) < 40 else f"{str(value)[:20]}..."
            raise Failure(f"{title}: {shown} is out of range", f"use at most {_LARGEST}", USAGE)


def _carry_out(session: Session, run: Callable[[], None]) -> None:
    """Run a command. Errors become a Failure with the next step. In every case it waits for the pager."""
    try:
        run()
        session.out.flush()
    except Failure as error:
        error.hint = error.hint and session.with_store_options(error.hint)
        raise
    except tape.TapeError as error:
        code, hint = judge(error)
        raise Failure(words(error), hint and session.with_store_options(hint), code) from error
    except BrokenPipeError as error:
        raise ReaderGone from error
    finally:
        session.out.close()


def command(
    *examples: str, name: str | None = None, data: bool = True, paged: bool = False, writes: Sequence[str] = ()
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a command that is called with a Session and its own arguments.

    ``examples`` are shown at the end of its help. A command with ``data`` has ``--json``, and the output of a ``paged``
    one may go to the pager. ``writes`` names the options of ``_WRITING`` that it gets, as ``options``.
    """

    def declare(function: Callable[..., None]) -> Callable[..., None]:
        command_name = name or function.__name__.rstrip("_")
        session_name, *_ = inspect.signature(function).parameters
        # The class is imported for type checking only, so that help does not load the store.
        del function.__annotations__[session_name]
        signature = inspect.signature(function, eval_str=True)
        _, *parameters = signature.parameters.values()
        parameters = [
            inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context),
            *(own.replace(kind=inspect.Parameter.KEYWORD_ONLY) for own in parameters if own.name != "options"),
            *(parameter for parameter in _WRITING if parameter.name in writes),
            *(parameter for parameter in _SHARED if data or parameter.name != "as_json"),
        ]

        @functools.wraps(function)
        def run(context: typer.Context, **arguments: Any) -> None:
            from tape.command.session import Session

            end_loading()
            above = context.obj if isinstance(context.obj, dict) else {}
            picked: dict[str, Any] = {
                title: arguments.pop(title, None) or above.get(title) for title in (*_PLACE, *_LOOK)
            }
            check_choice(picked["color"], COLORS, "--color")
            arguments.pop("debug", None)
            as_json = bool(arguments.pop("as_json", False))
            _check_numbers(context, arguments)
            if writes:
                options = {title: arguments.pop(title) for title in writes}
                arguments["options"] = options | {"meta": json_object(options["meta"], "--meta")}
            session = Session(**{**picked, "no_pager": bool(picked["no_pager"])}, as_json=as_json)
            session.out.pageable = paged
            _carry_out(session, lambda: function(session, **arguments))

        run.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
        del run.__wrapped__
        _declared[command_name] = _Declared(run, examples)
        return function

    return declare
