"""Finding: events by name, and messages by id across tapes."""

import json
from collections.abc import Iterator
from typing import Any

import sqlalchemy as sa

from alembic import context, op
from tape.db.schema.replacing import replace_entries

revision = "0008"
down_revision = "0007"

# "@" stands for the PostgreSQL schema.
SQLITE = (
    """CREATE TABLE tape_events (
  tape_id INTEGER NOT NULL,
  name TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (tape_id, name, seq)
)
 WITHOUT ROWID""",
    "CREATE INDEX tape_aliases_id ON tape_aliases (id, tape_id)",
)
POSTGRESQL = (
    """CREATE TABLE @tape_events (
  tape_id BIGINT NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  seq BIGINT NOT NULL,
  PRIMARY KEY (tape_id, name, seq)
)""",
    "CREATE INDEX tape_aliases_id ON @tape_aliases (id, tape_id)",
)
COLUMNS = """position, tape_id, seq, kind, "key", actor, source_tape, source_seq, payload, meta, stamp, version, hash,
head_tape, lane, ordinal, xid"""
KEY_FIRST = """CREATE TABLE tape_entries_by_key (
  position INTEGER NOT NULL,
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL,
  "key" TEXT NOT NULL,
  actor TEXT,
  source_tape TEXT,
  source_seq INTEGER,
  payload BLOB,
  meta BLOB,
  stamp INTEGER NOT NULL,
  version INTEGER NOT NULL,
  hash BLOB NOT NULL,
  head_tape INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  xid INTEGER NOT NULL,
  PRIMARY KEY (position),
  CONSTRAINT tape_entries_seq UNIQUE (tape_id, seq),
  CONSTRAINT tape_entries_key UNIQUE ("key", tape_id),
  CONSTRAINT tape_entries_kind CHECK (kind IN ('open', 'append', 'revise', 'retract', 'restore', 'clear', 'anchor', 'handoff', 'compact', 'state', 'block', 'usage', 'event', 'fork', 'merge', 'discard', 'switch', 'status', 'label', 'erase'))
)"""
_PAGE = 5_000


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    connection = op.get_bind()
    sqlite = connection.dialect.name == "sqlite"
    for ddl in SQLITE if sqlite else POSTGRESQL:
        connection.execute(sa.DDL(ddl.replace("@", at).replace("%", "%%")))
    if sqlite:
        # So an id is found on whichever tapes have it.
        replace_entries(connection, "tape_entries_by_key", KEY_FIRST, COLUMNS)
    # A colon in the name of the schema is no parameter.
    at = at.replace(":", r"\:")
    into = sa.text(f"INSERT INTO {at}tape_events (tape_id, name, seq) VALUES (:tape_id, :name, :seq)")
    for named in _events(connection, at):
        if named:
            connection.execute(into, named)


def _events(connection: sa.Connection, at: str) -> Iterator[list[dict[str, Any]]]:
    """Yield the names of all events, a page at a time; of one that cannot be read, ``verify`` tells."""
    events = sa.text(
        f"SELECT tape_id, seq, payload FROM {at}tape_entries WHERE kind = 'event' AND (tape_id, seq) > (:tape, :after)"
        f" ORDER BY tape_id, seq LIMIT {_PAGE}"
    )
    last = (0, 0)
    while rows := connection.execute(events, {"tape": last[0], "after": last[1]}).fetchall():
        names = [(tape_id, seq, _name(payload)) for tape_id, seq, payload in rows]
        yield [{"tape_id": tape_id, "name": name, "seq": seq} for tape_id, seq, name in names if name is not None]
        last = (rows[-1][0], rows[-1][1])


def _name(payload: bytes | None) -> str | None:
    try:
        name = json.loads(bytes(payload or b""))["name"]
    except (ValueError, TypeError, KeyError, RecursionError):
        return None
    return name if isinstance(name, str) and "\0" not in name else None
