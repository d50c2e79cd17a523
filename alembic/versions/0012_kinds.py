"""The CHECK on an entry's kind as comparisons: for a list SQLite makes a table of all kinds, anew for every row."""

from alembic import op
from tape.db.schema.replacing import replace_entries

revision = "0012"
down_revision = "0011"

COLUMNS = """position, tape_id, seq, kind, "key", actor, source_tape, source_seq, payload, meta, stamp, version, hash,
head_tape, lane, ordinal, xid"""
COMPARED = """CREATE TABLE tape_entries_compared (
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
  CONSTRAINT tape_entries_kind CHECK (kind = 'append' OR kind = 'event' OR kind = 'state' OR kind = 'revise' OR kind = 'open' OR kind = 'retract' OR kind = 'restore' OR kind = 'clear' OR kind = 'anchor' OR kind = 'handoff' OR kind = 'compact' OR kind = 'block' OR kind = 'usage' OR kind = 'fork' OR kind = 'merge' OR kind = 'discard' OR kind = 'switch' OR kind = 'status' OR kind = 'label' OR kind = 'erase')
)"""


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        replace_entries(op.get_bind(), "tape_entries_compared", COMPARED, COLUMNS)
