"""Entries of an import that is under way, which nobody sees before all of them are there."""

import sqlalchemy as sa

from alembic import context, op

revision = "0006"
down_revision = "0005"

# "@" stands for the PostgreSQL schema.
SQLITE = (
    """CREATE TABLE tape_arrivals (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL,
  key TEXT NOT NULL,
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
  PRIMARY KEY (tape_id, seq)
)
 WITHOUT ROWID""",
)

POSTGRESQL = (
    """CREATE TABLE @tape_arrivals (
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  kind TEXT NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  actor TEXT,
  source_tape TEXT,
  source_seq BIGINT,
  payload BYTEA,
  meta BYTEA,
  stamp BIGINT NOT NULL,
  version BIGINT NOT NULL,
  hash BYTEA NOT NULL,
  head_tape BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  PRIMARY KEY (tape_id, seq)
)""",
)


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    sqlite = op.get_bind().dialect.name == "sqlite"
    for ddl in SQLITE if sqlite else POSTGRESQL:
        op.get_bind().execute(sa.DDL(ddl.replace("@", at).replace("%", "%%")))
