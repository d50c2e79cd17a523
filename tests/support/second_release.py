"""A release with one more revision, as a program: ``python -m support.second_release ADDRESS OPTIONS``.

It opens the store, which upgrades it, appends a message to the tape ``chat``, and prints the revision.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import tape
from support.backends import Backend
from tape.db.schema import migrate, tables

__all__ = ["SECOND", "upgrade_elsewhere"]

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


def upgrade_elsewhere(backend: Backend, script: str = "") -> str:
    """Open the backend's store in another process, of the later release; returns what it printed.

    ``script`` is more Python for its revision, with ``at`` as what stands before the name of a table.
    """
    options = {name: value for name, value in backend.options.items() if name == "schema"}
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parent)])}
    command = [sys.executable, "-m", "support.second_release", backend.address, json.dumps(options), script]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def _main(address: str, options: str, script: str) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / "alembic"
        shutil.copytree(migrate.scripts(), copy)
        (copy / "versions" / f"{SECOND}_second.py").write_text(f"{_SCRIPT}    {script}\n")
        known = (*tables.KNOWN, SECOND)
        for name, module in list(sys.modules.items()):
            if name.startswith("tape.") and hasattr(module, "REVISION"):
                module.__dict__["REVISION"] = SECOND
                if hasattr(module, "KNOWN"):
                    module.__dict__["KNOWN"] = known
        migrate.__dict__["scripts"] = lambda: copy
        with tape.open(address, **json.loads(options)) as store:
            store.tape("chat").append(role="user", content="by the later release")
            print(store.health().schema)


if __name__ == "__main__":
    _main(*sys.argv[1:])
