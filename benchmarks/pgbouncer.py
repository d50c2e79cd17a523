"""Writers through PgBouncer in transaction mode, against as many with connections of their own to the same server."""

from __future__ import annotations

import contextlib
import os
import pwd
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import psycopg
import sqlalchemy as sa

from benchmarks.harness import Run, dsn, race, schema
from benchmarks.writers import THREADS, Ledger, threads_on

__all__ = ["find_program", "pgbouncer", "pooled"]

PATIENCE = 30.0
PORT = 6432
"""Of a socket in a folder of its own: nothing listens on the network."""


def find_program() -> str | None:
    """Return the path of PgBouncer; servers are where only root's path leads."""
    return shutil.which("pgbouncer", path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin"]))


@contextlib.contextmanager
def pooled(program: str, server: sa.URL, *, sessions: int) -> Iterator[sa.URL]:
    """Start PgBouncer in front of a server, with so many sessions for all of its clients; gives its URL."""
    folder = Path(tempfile.mkdtemp(prefix="tape-pgbouncer-", dir="/tmp" if Path("/tmp").is_dir() else None))
    name = f"{server.database or 'postgres'}"
    named = server.query.get("host")
    socket = named if isinstance(named, str) and named.startswith("/") else None
    to = {
        "host": str(named or server.host or "127.0.0.1"),
        "port": str(server.port or server.query.get("port") or 5432),
        "dbname": name,
        "user": server.username or "postgres",
        "password": str(server.password or ""),
    }
    file = folder / "pgbouncer.ini"
    file.write_text(
        "[databases]\n"
        f"{name} = {' '.join(f'{key}={value}' for key, value in to.items() if value)}\n"
        "[pgbouncer]\n"
        "pool_mode = transaction\n"
        f"default_pool_size = {sessions}\n"
        "max_client_conn = 500\n"
        "ignore_startup_parameters = extra_float_digits, options\n"
        "auth_type = any\n"
        f"stats_users = {to['user']}\n"
        f"listen_port = {PORT}\n"
        f"unix_socket_dir = {folder}\n"
        f"logfile = {folder}/log\n"
        "syslog = 0\n"
    )
    command = [program, "-q", str(file)]
    if os.geteuid() == 0:
        # It refuses to run as root. Whoever owns the server's socket can reach it.
        user = pwd.getpwuid(os.stat(socket).st_uid).pw_name if socket else "nobody"
        shutil.chown(folder, user)
        command[1:1] = ["-u", user]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = server.set(host=None, port=None, password=None)
    url = url.difference_update_query(["host", "port"])
    url = url.update_query_dict({"host": str(folder), "port": str(PORT)})
    try:
        _wait(url, process, folder / "log")
        yield url
    finally:
        process.terminate()
        try:
            process.wait(PATIENCE)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(PATIENCE)
        shutil.rmtree(folder, ignore_errors=True)


def _wait(url: sa.URL, process: subprocess.Popen[bytes], log: Path) -> None:
    """Wait until a client gets through to the server."""
    deadline = time.monotonic() + PATIENCE
    while True:
        try:
            psycopg.connect(dsn(url), connect_timeout=5).close()
            return
        except psycopg.OperationalError as error:
            if process.poll() is not None or time.monotonic() > deadline:
                told = log.read_text() if log.exists() else ""
                raise AssertionError(f"PgBouncer does not serve: {error}\n{told}") from error
        time.sleep(0.02)


def pgbouncer(run: Run) -> None:
    """Sixteen writers on tapes of their own, through a pool of as many sessions and of a quarter."""
    program = find_program()
    if run.postgres is None or program is None:
        run.report.lack("PgBouncer: it is not installed, or PostgreSQL was left out")
        return
    times = run.pick(40, 5)
    for sessions, least in ((THREADS, 0.9), (THREADS // 4, None)):
        with ExitStack() as stack:
            url = stack.enter_context(pooled(program, run.postgres, sessions=sessions))
            ours, theirs = (stack.enter_context(schema(run.postgres, f"bench_{who}")) for who in ("pooled", "direct"))
            through = stack.enter_context(threads_on(Ledger(url, {"schema": ours}), THREADS, THREADS, times))
            direct = stack.enter_context(threads_on(Ledger(run.postgres, {"schema": theirs}), THREADS, THREADS, times))
            taken = race(run.pick(12, 2), {"direct": direct, "pooled": through})
        told = taken.all()
        note = f"{told['direct'].per_second:.0f} and {told['pooled'].per_second:.0f} a second"
        what = f"{THREADS} writers through PgBouncer with {sessions} sessions, against connections of their own"
        run.report.bar(what, taken.speed("pooled", "direct"), least=least, times=told, note=note)
