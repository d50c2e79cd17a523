"""Search and feed: the index, the order of all entries, and how far each reader has come."""

import sqlalchemy as sa

from alembic import context, op

revision = "0004"
down_revision = "0003"

# "@" stands for the PostgreSQL schema.
SQLITE = (
    """CREATE TABLE tape_epoch (
  base INTEGER NOT NULL
)""",
    "INSERT INTO tape_epoch (base) VALUES (0)",
    """CREATE TABLE tape_texts (
  position INTEGER NOT NULL,
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  origin INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  PRIMARY KEY (position)
)""",
    "CREATE INDEX tape_texts_tape ON tape_texts (tape_id, seq)",
    """CREATE TABLE tape_consumers (
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  xid INTEGER NOT NULL,
  position INTEGER NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (owner, name)
)
 WITHOUT ROWID""",
)

POSTGRESQL = (
    "CREATE INDEX tape_entries_feed ON @tape_entries (xid, position)",
    """CREATE TABLE @tape_epoch (
  base BIGINT NOT NULL
)""",
    "INSERT INTO @tape_epoch (base) VALUES (0)",
    """CREATE TABLE @tape_texts (
  position BIGINT NOT NULL,
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  origin BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  xid BIGINT NOT NULL,
  words TSVECTOR NOT NULL,
  PRIMARY KEY (tape_id, seq)
)""",
    "CREATE INDEX tape_texts_feed ON @tape_texts (xid, position)",
    "CREATE INDEX tape_texts_words ON @tape_texts USING gin (words) WITH (fastupdate = off)",
    """CREATE TABLE @tape_consumers (
  owner TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  xid BIGINT NOT NULL,
  position BIGINT NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (owner, name)
)""",
)


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    sqlite = op.get_bind().dialect.name == "sqlite"
    for ddl in SQLITE if sqlite else POSTGRESQL:
        op.get_bind().execute(sa.DDL(ddl.replace("@", at).replace("%", "%%")))
