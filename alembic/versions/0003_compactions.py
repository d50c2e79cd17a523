"""Compactions: summaries that stand for runs of messages."""

import sqlalchemy as sa

from alembic import context, op

revision = "0003"
down_revision = "0002"

# "@" stands for the PostgreSQL schema.
SQLITE = (
    """CREATE TABLE tape_compactions (
  tape_id INTEGER NOT NULL,
  origin INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  since INTEGER NOT NULL,
  head_tape INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  lo INTEGER NOT NULL,
  gone INTEGER NOT NULL,
  revised INTEGER NOT NULL,
  loose INTEGER NOT NULL,
  until INTEGER,
  PRIMARY KEY (tape_id, origin, seq, since)
)
 WITHOUT ROWID""",
    "CREATE INDEX tape_compactions_place ON tape_compactions (tape_id, head_tape, lane, ordinal)",
)

POSTGRESQL = (
    """CREATE TABLE @tape_compactions (
  tape_id BIGINT NOT NULL,
  origin BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  since BIGINT NOT NULL,
  head_tape BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  lo BIGINT NOT NULL,
  gone BIGINT NOT NULL,
  revised BIGINT NOT NULL,
  loose BIGINT NOT NULL,
  until BIGINT,
  PRIMARY KEY (tape_id, origin, seq, since)
)""",
    "CREATE INDEX tape_compactions_place ON @tape_compactions (tape_id, head_tape, lane, ordinal)",
)


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    sqlite = op.get_bind().dialect.name == "sqlite"
    for ddl in SQLITE if sqlite else POSTGRESQL:
        op.get_bind().execute(sa.DDL(ddl.replace("@", at).replace("%", "%%")))
