"""Forks: where a tape was forked off, and what it made of inherited messages."""

import sqlalchemy as sa

from alembic import context, op

revision = "0002"
down_revision = "0001"

# "@" stands for the PostgreSQL schema.
SQLITE = (
    "ALTER TABLE tape_calls ADD COLUMN place_tape INTEGER DEFAULT '0' NOT NULL",
    """CREATE TABLE tape_forks (
  tape_id INTEGER NOT NULL,
  parent_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  lineage BLOB NOT NULL,
  state TEXT NOT NULL,
  merged INTEGER NOT NULL,
  merge_seq INTEGER NOT NULL,
  PRIMARY KEY (tape_id)
)
 WITHOUT ROWID""",
    "CREATE INDEX tape_forks_parent ON tape_forks (parent_id)",
    """CREATE TABLE tape_overrides (
  tape_id INTEGER NOT NULL,
  origin INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  since INTEGER NOT NULL,
  placed INTEGER NOT NULL,
  body_tape INTEGER NOT NULL,
  body INTEGER,
  until INTEGER,
  why TEXT NOT NULL,
  PRIMARY KEY (tape_id, origin, lane, ordinal, since)
)
 WITHOUT ROWID""",
)

POSTGRESQL = (
    "ALTER TABLE @tape_calls ADD COLUMN place_tape BIGINT DEFAULT '0' NOT NULL",
    """CREATE TABLE @tape_forks (
  tape_id BIGINT NOT NULL,
  parent_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  lineage BYTEA NOT NULL,
  state TEXT NOT NULL,
  merged BIGINT NOT NULL,
  merge_seq BIGINT NOT NULL,
  PRIMARY KEY (tape_id)
)""",
    "CREATE INDEX tape_forks_parent ON @tape_forks (parent_id)",
    """CREATE TABLE @tape_overrides (
  tape_id BIGINT NOT NULL,
  origin BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  since BIGINT NOT NULL,
  placed BIGINT NOT NULL,
  body_tape BIGINT NOT NULL,
  body BIGINT,
  until BIGINT,
  why TEXT NOT NULL,
  PRIMARY KEY (tape_id, origin, lane, ordinal, since)
)""",
)


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    sqlite = op.get_bind().dialect.name == "sqlite"
    for ddl in SQLITE if sqlite else POSTGRESQL:
        op.get_bind().execute(sa.DDL(ddl.replace("@", at).replace("%", "%%")))
