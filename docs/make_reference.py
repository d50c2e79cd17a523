"""Write docs/reference.md from the docstrings and the command's help: ``python docs/make_reference.py``.

A part of the page is a function that returns Markdown. To add one, write it and put it into ``PARTS``; a test compares
the page with what this file makes, and fails when somebody changed a signature or a docstring and forgot the page.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import msgspec
import typer.main

import tape
import tape.transcripts
from tape.command.registry import app, declared
from tape.db import rls

PAGE = Path(__file__).with_name("reference.md")

_HEAD = """# Reference

Every public name from its docstring, and every command from its help. Made by `docs/make_reference.py`; do not edit
it by hand. How the parts belong together is told in the [quickstart](quickstart.md) and in [the model](model.md).
"""

_WIDTH = 118


# -- parts


def opening() -> str:
    """Return the part on opening stores."""
    functions = {name: getattr(tape, name) for name in ("open", "open_async", "open_pool", "open_pool_async")}
    return _part("Opening a store", [_function(f"tape.{name}", function) for name, function in functions.items()])


HANDLES: list[type] = [tape.Store, tape.Tape, tape.Snapshot, tape.Fork, tape.Consumer, tape.Toolset, tape.Tool]
HANDLES += [tape.Pool, tape.PoolFeed]
HELPERS: list[Callable[..., Any]] = [tape.lenient, tape.to_strict, tape.from_strict, tape.as_id]
HELPERS += [tape.new_id, tape.load_prices]
RUNS: list[type] = [tape.Run, tape.Effect, tape.Recording]
TWINS: list[type] = [tape.AsyncStore, tape.AsyncTape, tape.AsyncSnapshot, tape.AsyncFork, tape.AsyncConsumer]
TWINS += [tape.AsyncRun, tape.AsyncPool, tape.AsyncPoolFeed]

_TWINS = """### The async twins

{names} have the same methods with the same arguments, to `await`; what is an iterator here is an async iterator
there. `tape.open_async` makes them. An `AsyncStore` has two names more: `await store.run(fn)` calls a plain function
with the plain store, in one hop to a thread, and `store.sync` is that store, for code that is not async.
"""


def handles() -> str:
    """Return the part on stores and tapes."""
    # A tape has all reads of a snapshot and a fork all calls of a tape: each is told once, where it is met first.
    told: set[Any] = set()
    twins = _TWINS.format(names=", ".join(f"`{one.__name__}`" for one in TWINS)).strip()
    return _part("Stores and tapes", [*(_class(one, told) for one in HANDLES), twins])


def runs() -> str:
    """Return the part on recording runs and running them again."""
    functions = {name: getattr(tape, name) for name in ("record", "replay", "check", "recover", "bisect")}
    told: set[Any] = set()
    pieces = [_function(f"tape.{name}", function) for name, function in functions.items()]
    return _part("Runs", [*pieces, *(_class(one, told) for one in RUNS)])


def values() -> str:
    """Return the part on what calls take and give."""
    found = []
    for name in tape.__all__:
        one: Any = getattr(tape, name)
        if isinstance(one, type) and not issubclass(one, BaseException) and one not in (*HANDLES, *RUNS, *TWINS):
            found.append(_class(one, set()))
    helpers = [_function(f"tape.{one.__name__}", one) for one in HELPERS]
    return _part("Values", [*helpers, *found])


def transcripts() -> str:
    """Return the part on importing transcripts."""
    parts = [
        _function("tape.transcripts.import_transcript", tape.transcripts.import_transcript),
        _class(tape.transcripts.ImportedTranscript, set()),
        _class(tape.transcripts.ImportProblem, set()),
        _function("tape.transcripts.import_paths", tape.transcripts.import_paths),
        _class(tape.transcripts.ImportedFile, set()),
        _function("tape.transcripts.watch_paths", tape.transcripts.watch_paths),
        _function("tape.transcripts.export_transcript", tape.transcripts.export_transcript),
        _class(tape.transcripts.ClaudeMirror, set()),
        _function("tape.transcripts.claude_lines", tape.transcripts.claude_lines),
        "### tape.transcripts.FORMATS\n\n" + ", ".join(f"`{name}`" for name in tape.transcripts.FORMATS) + ".",
        "### tape.transcripts.EXPORT_FORMATS\n\n"
        + ", ".join(f"`{name}`" for name in tape.transcripts.EXPORT_FORMATS)
        + ".",
    ]
    return _part("Transcripts", parts)


def security() -> str:
    """Return the part on row-level security."""
    return _part("Row-level security", [_function(f"tape.db.rls.{name}", getattr(rls, name)) for name in rls.__all__])


def errors() -> str:
    """Return the part on errors, as a tree in a table."""
    rows = ["| error | attributes | what it means |", "|---|---|---|"]
    for one in _tree(tape.TapeError):
        facts = [name for name in inspect.signature(one.__init__).parameters if name not in ("self", "args", "kwargs")]
        named = " ".join(f"`{name}`" for name in facts)
        rows.append(f"| `{one.__name__}` | {named} | {' '.join(_text(one).split())} |")
    return _part("Errors", ["\n".join(rows)])


_COMMAND = """From the command's own help, by the extra `cli`. What each prints, the shapes of its `--json` and its exit
codes are told in [the command](command.md).
"""


def command() -> str:
    """Return the part on the command: what every command takes, and what each takes besides."""
    commands = dict(sorted(typer.main.get_command(app).commands.items()))  # type: ignore[attr-defined]
    shared = {"store", "schema", "owner", "as_json", "debug"}
    everywhere = [one for one in commands["ls"].params if one.name in shared]
    pieces = [_COMMAND.strip(), "### Every command", _arguments(everywhere)]
    for name, one in commands.items():
        own = [argument for argument in one.params if argument.name not in shared]
        examples = "\n".join(declared(name).examples)
        pieces += [f"### tape {name}", str(one.help), *([_arguments(own)] if own else []), f"```text\n{examples}\n```"]
    return _part("The command", pieces)


def _arguments(found: Iterable[Any]) -> str:
    """Return arguments and options as a table."""
    rows = ["| | |", "|---|---|"]
    for one in found:
        optional = one.param_type_name == "option"
        given = " ".join((*one.opts, *one.secondary_opts)) if optional else one.metavar or str(one.name).upper()
        rows.append(f"| `{given}` | {' '.join(str(one.help or '').replace('|', chr(92) + '|').split())} |")
    return "\n".join(rows)


PARTS: list[Callable[[], str]] = [opening, handles, runs, values, transcripts, security, errors, command]
"""What the page is made of, in order."""


def reference() -> str:
    """Return the whole page."""
    return "\n".join([_HEAD, *(part() for part in PARTS)])


# -- pieces


def _part(title: str, pieces: Iterable[str]) -> str:
    return "\n\n".join([f"## {title}", *pieces]) + "\n"


def _text(thing: Any) -> str:
    """Return a docstring as Markdown."""
    text = inspect.cleandoc(thing.__doc__ or "")
    return re.sub(r"``([^`]+)``", r"`\1`", text)


def _function(name: str, function: Callable[..., Any], level: int = 3) -> str:
    return f"{'#' * level} {name}\n\n```text\n{_signature(name, function)}\n```\n\n{_text(function)}"


def _annotation(value: Any) -> str:
    return value if isinstance(value, str) else getattr(value, "__name__", str(value))


def _signature(name: str, function: Callable[..., Any]) -> str:
    """Return a signature in one line, or with a line per argument if that is too long."""
    signature = inspect.signature(function)
    shown, starred = [], False
    parameters = [one for one in signature.parameters.values() if one.name != "self"]
    for index, one in enumerate(parameters):
        if one.kind is one.KEYWORD_ONLY and not starred:
            shown.append("*")
            starred = True
        prefix = "*" if one.kind is one.VAR_POSITIONAL else "**" if one.kind is one.VAR_KEYWORD else ""
        starred = starred or one.kind is one.VAR_POSITIONAL
        text = f"{prefix}{one.name}"
        if one.annotation is not one.empty:
            text += f": {_annotation(one.annotation)}"
        if one.default is not one.empty:
            text += f" = {one.default!r}"
        shown.append(text)
        if one.kind is one.POSITIONAL_ONLY and all(
            after.kind is not one.POSITIONAL_ONLY for after in parameters[index + 1 :]
        ):
            shown.append("/")
    short = name.rpartition(".")[2] if not name.startswith("tape.") else name
    gives = "" if signature.return_annotation is signature.empty else f" -> {_annotation(signature.return_annotation)}"
    line = f"{short}({', '.join(shown)}){gives}"
    if len(line) <= _WIDTH:
        return line
    return f"{short}(\n" + "".join(f"    {text},\n" for text in shown) + f"){gives}"


def _class(one: type, told: set[Any]) -> str:
    """Return a class: its docstring, its fields, its properties and its methods, its own and those of its bases."""
    lines = [f"### {one.__name__}", "", _text(one)]
    fields = list(_fields(one))
    if fields:
        lines += ["", "| field | type | |", "|---|---|---|", *fields]
    members = []
    for base in reversed(one.__mro__):
        if base.__module__.partition(".")[0] == "tape":
            members += [name for name in vars(base) if not name.startswith("_") and name not in members]
    for name in members:
        member = inspect.getattr_static(one, name)
        if isinstance(member, property) and name not in told:
            lines += ["", f"#### {one.__name__}.{name}", "", _text(member)]
        elif inspect.isfunction(member) and member not in told:
            told.add(member)
            lines += ["", _function(f"{one.__name__}.{name}", member, 4)]
        if isinstance(member, property):
            told.add(name)
    return "\n".join(lines)


def _fields(one: type) -> Iterator[str]:
    """Yield the fields of a class as rows; what is said of each stands in a string behind it."""
    said = _said(one)
    if not issubclass(one, msgspec.Struct):
        yield from (f"| `{name}` | | {text} |" for name, text in said.items() if not name.startswith("_"))
        return
    for field in msgspec.structs.fields(one):
        kind = str(one.__annotations__.get(field.name, "")).replace("|", "\\|")
        yield f"| `{field.name}` | `{kind}` | {said.get(field.name, '')} |"


def _said(one: type) -> dict[str, str]:
    """Return what is said of each attribute in the body of the class, or where ``__init__`` sets it."""
    (body,) = ast.parse(textwrap.dedent(inspect.getsource(one))).body
    assert isinstance(body, ast.ClassDef)
    makers = [part.body for part in body.body if isinstance(part, ast.FunctionDef) and part.name == "__init__"]
    found = {}
    for lines in (body.body, *makers):
        for before, after in pairwise(lines):
            name = _assigned(before)
            if name and isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant):
                text = " ".join(inspect.cleandoc(str(after.value.value)).split())
                found[name] = re.sub(r"``([^`]+)``", r"`\1`", text).replace("|", "\\|")
    return found


def _assigned(line: ast.stmt) -> str | None:
    if isinstance(line, ast.AnnAssign):
        target: ast.expr = line.target
    elif isinstance(line, ast.Assign) and len(line.targets) == 1:
        target = line.targets[0]
    else:
        return None
    if isinstance(target, ast.Name):
        return target.id
    return target.attr if isinstance(target, ast.Attribute) else None


def _tree(one: type[BaseException]) -> Iterator[type[BaseException]]:
    if one.__name__ in tape.__all__:
        yield one
    for child in one.__subclasses__():
        yield from _tree(child)


def main() -> None:
    """Write the page."""
    PAGE.write_text(reference(), encoding="utf-8")
    print(f"wrote {PAGE.name}", file=sys.stderr)


if __name__ == "__main__":
    main()
