"""A later release, with one more revision: inside this process for a while, or as a program.

``python -m support.second_release ADDRESS OPTIONS`` opens the store, which upgrades it, appends a message to the tape
``chat``, and prints the revision.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tape
from support.backends import Backend
from tape.db.engine import transaction
from tape.db.schema import migrate, tables

__all__ = ["SECOND", "second_release", "upgrade_elsewhere"]

SECOND = "9000"
"""The revision that the release adds."""
_SCRIPT = f'''"""A table of a later release, and a fact about every tape that the later release keeps up to date."""

from alembic import context, op

revision = "{SECOND}"
down_revision = "{tables.REVISION}"


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    op.get_bind().exec_driver_sql(f"CREATE TABLE {{at}}tape_counted (tape_id BIGINT PRIMARY KEY, entries BIGINT)")
    op.get_bind().exec_driver_sql(f"INSERT INTO {{at}}tape_counted SELECT tape_id, seq FROM {{at}}tape_heads")
'''


@contextmanager
def second_release(script: str = "") -> Iterator[None]:
    """Be the later release: every store that is opened meanwhile is upgraded.

    ``script`` is more Python for its revision, with ``at`` as the text before the name of a table.
    """
    import tape.command.session
    import tape.command.verbs.maintain
    import tape.db.maintain.inspect
    import tape.handles.doctor  # noqa: F401

    before: list[tuple[dict[str, Any], str, Any]] = [
        (vars(module), name, vars(module)[name])
        for key, module in list(sys.modules.items())
        if key.startswith("tape.")
        for name in ("REVISION", "KNOWN")
        if name in vars(module)
    ]
    before.append((vars(migrate), "scripts", migrate.scripts))
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "alembic"
        shutil.copytree(migrate.scripts(), copy)
        (copy / "versions" / f"{SECOND}_second.py").write_text(f"{_SCRIPT}    {script}\n")
        try:
            for names, name, value in before:
                names[name] = {"REVISION": SECOND, "KNOWN": (*tables.KNOWN, SECOND)}.get(name, value)
            vars(migrate)["scripts"] = lambda: copy
            # The revision is part of the compiled statements.
            transaction._compiled.cache_clear()
            yield
        finally:
            for names, name, value in before:
                names[name] = value
            transaction._compiled.cache_clear()


def upgrade_elsewhere(backend: Backend, script: str = "") -> str:
    """Open the backend's store in another process, of the later release; returns what it printed."""
    options = {name: value for name, value in backend.options.items() if name == "schema"}
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
    command = [sys.executable, "-m", "support.second_release", backend.address, json.dumps(options), script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _main(address: str, options: str, script: str) -> None:
    with second_release(script), tape.open(address, **json.loads(options)) as store:
        store.tape("chat").append(role="user", content="by the later release")
        print(store.health().schema)


if __name__ == "__main__":
    _main(*sys.argv[1:])
