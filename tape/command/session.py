"""One run of a command: the store that was named, the tapes in it, and where output goes."""

from __future__ import annotations

import contextlib
import os
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import sqlalchemy as sa

import tape
from tape.command import addresses
from tape.command.exit_codes import DAMAGED, NOT_FOUND, SCHEMA, USAGE, Failure
from tape.command.output import Out
from tape.db.engine.connect import check_orphan, check_replaceable, is_memory, parse_url
from tape.db.engine.guests import open_database
from tape.db.engine.transaction import Database
from tape.db.maintain.inspect import StoreState, look
from tape.db.schema.tables import REVISION

__all__ = ["DEFAULT", "Session"]

DEFAULT = "tape.db"
"""The store when none is named, as for ``tape.open``."""

_TIMEOUT = 30.0
"""Seconds to wait for another writer, as for ``tape.open``."""


class Session:
    """The store, schema and owner of one run of a command."""

    def __init__(
        self,
        store: str | None,
        schema: str | None,
        owner: str | None,
        *,
        as_json: bool = False,
        color: str | None = None,
        no_pager: bool = False,
    ) -> None:
        self.named = store or os.environ.get("TAPE_STORE") or DEFAULT
        self.schema = schema or os.environ.get("TAPE_SCHEMA") or None
        self.owner = owner or os.environ.get("TAPE_OWNER") or None
        self.out = Out(as_json=as_json, color=color, pager=not no_pager)
        self._store_options = [("--store", store), ("--schema", schema), ("--owner", owner)]

    @property
    def url(self) -> sa.URL:
        """The URL of the database."""
        return parse_url(self.named)

    @property
    def shown(self) -> str:
        """The store as it may be printed: a URL without its password."""
        return self.url.render_as_string(hide_password=True) if "://" in self.named else self.named

    def with_store_options(self, hint: str) -> str:
        """Return a hint whose command, if it ends with one, has the store options that this command was given."""
        if not re.search(r"(^|: )tape [a-z]+[^:]*$", hint) or hint.endswith("--help"):
            return hint
        options = (f"{name} {shlex.quote(value)}" for name, value in self._store_options if value)
        return re.sub(r"//[^/@\s]*@", "//***@", " ".join([hint, *options]))

    def look(self) -> StoreState:
        """Look at the store without opening it."""
        url = self.url
        if url.get_backend_name() == "sqlite" and not is_memory(url):
            self._check_path(Path(url.database or ""))
            check_orphan(url.database or "")
        return look(url, self.schema)

    def usable(self) -> StoreState:
        """Look at the store without opening it; raises for one that is damaged or of a newer release."""
        state = self.look()
        if state.damaged is not None:
            hint = "restore the store from a backup, or name another with --store or TAPE_STORE"
            raise Failure(f"{self.shown!r} {state.damaged}", hint, DAMAGED)
        if state.newer:
            raise tape.SchemaTooNew(state.revision or "", REVISION)
        return state

    def _check_path(self, path: Path) -> None:
        """Raise Failure for a path at which no store is and none can be made."""
        if path.is_dir():
            raise Failure(f"{self.shown!r} is a folder", "name a file in it", USAGE)
        if path.exists() and not path.is_file():
            raise Failure(f"{self.shown!r} is not a file", "name another with --store or TAPE_STORE", USAGE)
        if path.is_symlink() and not path.exists():
            problem = f"there is no store at {self.shown!r}: it is a broken link to {os.readlink(path)!r}"
            raise Failure(problem, "repair the link, or remove it", NOT_FOUND)
        if not path.exists() and not path.resolve().parent.is_dir():
            folder = str(path.resolve().parent)
            problem = f"there is no store at {self.shown!r}"
            if os.path.lexists(folder):
                raise Failure(f"{problem}: {folder!r} is not a folder", "name another path", NOT_FOUND)
            raise Failure(f"{problem}: the folder {folder!r} does not exist", "create the folder first", NOT_FOUND)

    def absent(self, state: StoreState, or_else: str = "") -> Failure:
        """Return the error that there is no store; its hint ends with what else can be done."""
        problem = f"there is no store at {self.shown!r}"
        if state.contents is not None:
            problem = f"{self.shown!r} is not a store: it is {state.contents}"
        return Failure(problem, f"name a store with --store or TAPE_STORE{or_else}", NOT_FOUND)

    @contextlib.contextmanager
    def open(self, *, create: bool = False, read_only: bool = False, or_else: str = "") -> Iterator[tape.Store]:
        """Open the store. A missing one is an error, unless the command may ``create`` it.

        ``or_else`` is what the error's hint says beside naming another store.

        ``read_only`` is for commands that only read: nothing is written, and a store that others keep can be read.
        A store that a command creates appears when the command has succeeded, so that a failure leaves nothing.
        """
        state = self.usable()
        if state.revision is None:
            if not create or is_memory(self.url):
                raise self.absent(state, or_else)
            with self._created(state) as store:
                yield store
            return
        if not state.current:
            problem = f"the store has schema {state.revision}, this release needs {REVISION}"
            raise Failure(problem, "take a backup, then run: tape migrate", SCHEMA)
        with tape.open(self.url, owner=self.owner, schema=self.schema, read_only=read_only) as store:
            yield store

    @property
    def unwritable(self) -> bool:
        """Whether the store is a file that cannot be written, so that a check of it cannot be noted."""
        url = self.url
        if url.get_backend_name() != "sqlite" or is_memory(url):
            return False
        path = Path(url.database or "").resolve()
        return path.exists() and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK))

    def database(self, *, read_only: bool = False) -> contextlib.closing[Database]:
        """Open the database itself, beside the store, for the calls of ``tape.db.maintain``."""
        database = open_database(
            self.url,
            schema=self.schema,
            durability="full",
            timeout=_TIMEOUT,
            read_only=read_only,
        )
        try:
            database.recognize()
        except BaseException:
            database.close()
            raise
        return contextlib.closing(database)

    @contextlib.contextmanager
    def _created(self, state: StoreState) -> Iterator[tape.Store]:
        if self.url.get_backend_name() != "sqlite":
            raise Failure(str(self.absent(state)), "create a store there with: tape migrate --create", NOT_FOUND)
        if state.there:
            # Another program's database, or an empty file: tables are created in it only on request.
            raise Failure(str(self.absent(state)), "add a store to it with: tape migrate --create", NOT_FOUND)
        target = Path(self.url.database or "")
        check_replaceable(target)
        part = target.with_name(f"{target.name}.part-{os.getpid()}")
        try:
            with tape.open(part, owner=self.owner) as store:
                yield store
            self._appear(part, target)
        finally:
            for name in ("", "-wal", "-shm", "-writer"):
                Path(f"{part}{name}").unlink(missing_ok=True)

    def _appear(self, part: Path, target: Path) -> None:
        """Give a new store its name, unless another process made a file of that name meanwhile."""
        check_replaceable(target)
        try:
            # Unlike a rename, a link never replaces another file.
            os.link(part, target)
        except FileExistsError:
            raise Failure(
                f"another process created {self.shown!r} at the same time", "run the same command again"
            ) from None
        except OSError:
            # Some file systems have no links.
            part.rename(target)

    # -- tapes

    def find(self, store: tape.Store, named: str) -> tape.Tape:
        """Return the tape that a word on the command line names."""
        return addresses.find_tape(store, named)

    def at(self, chat: tape.Tape, named: str | None) -> tape.Snapshot:
        """Return a tape as of a point, or as of now."""
        return addresses.at_point(chat, named)

    def within(self, chat: tape.Tape, seq: int) -> int:
        """Return a seq that the tape has."""
        return addresses.within(chat, seq)

    def address(
        self, store: tape.Store, written: str, at: str | None = None, *, beside: tape.Tape | None = None
    ) -> addresses.Address:
        """Return the tape and the point that an address names; ``at`` is the point of an option, given in its place."""
        named = addresses.read_address(store, written, beside)
        if at is None:
            return named
        if named.point is not None:
            raise Failure(f"{written!r} and --at both name a point", "leave out one of them", USAGE)
        return named._replace(point=at)
