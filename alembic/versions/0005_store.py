"""The store around the tapes: labels, redirects, tombstones, checks, and the indexes of listings."""

import json

import sqlalchemy as sa

from alembic import context, op

revision = "0005"
down_revision = "0004"

# "@" stands for the PostgreSQL schema.
SQLITE = (
    "ALTER TABLE tape_tapes ADD COLUMN redirect TEXT",
    "CREATE INDEX tape_tapes_owner ON tape_tapes (owner, id)",
    "CREATE INDEX tape_tapes_agent ON tape_tapes (agent, id)",
    "CREATE INDEX tape_tapes_status ON tape_tapes (status, id)",
    """CREATE TABLE tape_labels (
  tape_id INTEGER NOT NULL,
  label TEXT NOT NULL,
  PRIMARY KEY (tape_id, label)
)
 WITHOUT ROWID""",
    "CREATE INDEX tape_labels_label ON tape_labels (label, tape_id)",
    """CREATE TABLE tape_tombstones (
  tape_id INTEGER NOT NULL,
  tape TEXT NOT NULL,
  owner TEXT,
  seq INTEGER NOT NULL,
  hash BLOB NOT NULL,
  stamp INTEGER NOT NULL,
  emptied INTEGER NOT NULL,
  PRIMARY KEY (tape_id)
)
 WITHOUT ROWID""",
    "CREATE INDEX tape_tombstones_tape ON tape_tombstones (tape)",
    """CREATE TABLE tape_checks (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  hash BLOB NOT NULL,
  stamp INTEGER NOT NULL,
  PRIMARY KEY (tape_id)
)
 WITHOUT ROWID""",
    "CREATE INDEX tape_checks_stamp ON tape_checks (stamp)",
    """CREATE TABLE tape_imports (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (tape_id)
)
 WITHOUT ROWID""",
    # Labels given at creation were kept with the tape alone.
    """INSERT INTO tape_labels (tape_id, label)
SELECT DISTINCT t.id, j.value FROM tape_tapes t, json_each(CAST(t.labels AS TEXT)) j WHERE t.labels IS NOT NULL""",
)

POSTGRESQL = (
    'ALTER TABLE @tape_tapes ADD COLUMN redirect TEXT COLLATE "C"',
    "CREATE INDEX tape_tapes_owner ON @tape_tapes (owner, id)",
    "CREATE INDEX tape_tapes_agent ON @tape_tapes (agent, id)",
    "CREATE INDEX tape_tapes_status ON @tape_tapes (status, id)",
    """CREATE TABLE @tape_labels (
  tape_id BIGINT NOT NULL,
  label TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tape_id, label)
)""",
    "CREATE INDEX tape_labels_label ON @tape_labels (label, tape_id)",
    """CREATE TABLE @tape_tombstones (
  tape_id BIGINT NOT NULL,
  tape TEXT COLLATE "C" NOT NULL,
  owner TEXT COLLATE "C",
  seq BIGINT NOT NULL,
  hash BYTEA NOT NULL,
  stamp BIGINT NOT NULL,
  emptied BIGINT NOT NULL,
  PRIMARY KEY (tape_id)
)""",
    "CREATE INDEX tape_tombstones_tape ON @tape_tombstones (tape)",
    """CREATE TABLE @tape_checks (
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  hash BYTEA NOT NULL,
  stamp BIGINT NOT NULL,
  PRIMARY KEY (tape_id)
)""",
    "CREATE INDEX tape_checks_stamp ON @tape_checks (stamp)",
    """CREATE TABLE @tape_imports (
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  PRIMARY KEY (tape_id)
)""",
)


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    sqlite = op.get_bind().dialect.name == "sqlite"
    for ddl in SQLITE if sqlite else POSTGRESQL:
        op.get_bind().execute(sa.DDL(ddl.replace("@", at).replace("%", "%%")))
    if not sqlite:
        _list_labels(op.get_bind(), at.replace("%", "%%"))


def _list_labels(connection: sa.Connection, at: str) -> None:
    """List on PostgreSQL what was kept with the tapes: here, since Citus cannot take JSON apart in an INSERT."""
    tapes = connection.exec_driver_sql(f"SELECT id, labels FROM {at}tape_tapes WHERE labels IS NOT NULL").all()
    rows = [(tape.id, label) for tape in tapes for label in sorted(set(json.loads(bytes(tape.labels))))]
    if rows:
        connection.exec_driver_sql(f"INSERT INTO {at}tape_labels (tape_id, label) VALUES (%s, %s)", rows)
