"""The first schema: entries with their guards, tapes, and the view."""

import sqlalchemy as sa

from alembic import context, op

revision = "0001"
down_revision = None

# Frozen text, not the live metadata: a revision must always do the same. "@" stands for the PostgreSQL schema.
SQLITE = (
    """CREATE TABLE tape_aliases (
  tape_id INTEGER NOT NULL,
  id TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (tape_id, id)
) WITHOUT ROWID""",
    """CREATE INDEX tape_aliases_id ON tape_aliases (id, tape_id)""",
    """CREATE TABLE tape_anchors (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  name TEXT NOT NULL,
  head_tape INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  PRIMARY KEY (tape_id, seq)
) WITHOUT ROWID""",
    """CREATE INDEX tape_anchors_name ON tape_anchors (name, tape_id, seq)""",
    """CREATE INDEX tape_anchors_place ON tape_anchors (tape_id, head_tape, lane, ordinal, seq)""",
    """CREATE TABLE tape_answers (
  tape_id INTEGER NOT NULL,
  maker_tape INTEGER NOT NULL,
  maker_lane INTEGER NOT NULL,
  maker_ordinal INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  call TEXT NOT NULL,
  PRIMARY KEY (tape_id, maker_tape, maker_lane, maker_ordinal, lane, ordinal, call)
) WITHOUT ROWID""",
    """CREATE TABLE tape_arrivals (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  kind TEXT NOT NULL,
  "key" TEXT NOT NULL,
  actor TEXT,
  source_tape TEXT,
  source_seq INTEGER,
  payload BLOB,
  meta BLOB,
  salt BLOB,
  stamp INTEGER NOT NULL,
  version INTEGER NOT NULL,
  hash BLOB NOT NULL,
  head_tape INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  PRIMARY KEY (tape_id, seq)
) WITHOUT ROWID""",
    """CREATE TABLE tape_calls (
  tape_id INTEGER NOT NULL,
  call TEXT NOT NULL,
  seq INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  place_tape INTEGER DEFAULT '0' NOT NULL,
  PRIMARY KEY (tape_id, call, seq)
) WITHOUT ROWID""",
    """CREATE TABLE tape_checks (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  hash BLOB NOT NULL,
  stamp INTEGER NOT NULL,
  PRIMARY KEY (tape_id)
) WITHOUT ROWID""",
    """CREATE INDEX tape_checks_stamp ON tape_checks (stamp)""",
    """CREATE TABLE tape_clears (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  head_tape INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  hidden INTEGER NOT NULL,
  touched INTEGER NOT NULL,
  until INTEGER,
  PRIMARY KEY (tape_id, seq)
) WITHOUT ROWID""",
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
) WITHOUT ROWID""",
    """CREATE INDEX tape_compactions_place ON tape_compactions (tape_id, head_tape, lane, ordinal)""",
    """CREATE TABLE tape_consumers (
  owner TEXT NOT NULL,
  name TEXT NOT NULL,
  xid INTEGER NOT NULL,
  position INTEGER NOT NULL,
  version INTEGER NOT NULL,
  PRIMARY KEY (owner, name)
) WITHOUT ROWID""",
    """CREATE TABLE tape_entries (
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
  salt BLOB,
  stamp INTEGER NOT NULL,
  version INTEGER NOT NULL,
  hash BLOB NOT NULL,
  head_tape INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  xid INTEGER NOT NULL,
  commitment BLOB,
  PRIMARY KEY (position),
  CONSTRAINT tape_entries_seq UNIQUE (tape_id, seq),
  CONSTRAINT tape_entries_key UNIQUE ("key", tape_id),
  CONSTRAINT tape_entries_kind CHECK (kind = 'append' OR kind = 'event' OR kind = 'state' OR kind = 'revise' OR kind = 'open' OR kind = 'retract' OR kind = 'restore' OR kind = 'clear' OR kind = 'anchor' OR kind = 'handoff' OR kind = 'compact' OR kind = 'block' OR kind = 'usage' OR kind = 'fork' OR kind = 'merge' OR kind = 'discard' OR kind = 'switch' OR kind = 'status' OR kind = 'label' OR kind = 'erase')
)""",
    """CREATE TABLE tape_epoch (
  base INTEGER NOT NULL
)""",
    """CREATE TABLE tape_events (
  tape_id INTEGER NOT NULL,
  name TEXT NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (tape_id, name, seq)
) WITHOUT ROWID""",
    """CREATE TABLE tape_forks (
  tape_id INTEGER NOT NULL,
  parent_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  lineage BLOB NOT NULL,
  state TEXT NOT NULL,
  merged INTEGER NOT NULL,
  merge_seq INTEGER NOT NULL,
  PRIMARY KEY (tape_id)
) WITHOUT ROWID""",
    """CREATE INDEX tape_forks_parent ON tape_forks (parent_id)""",
    """CREATE TABLE tape_heads (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  hash BLOB NOT NULL,
  stamp INTEGER NOT NULL,
  head_tape INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  lo INTEGER NOT NULL,
  tip INTEGER NOT NULL,
  cleared INTEGER NOT NULL,
  messages INTEGER NOT NULL,
  last_message INTEGER NOT NULL,
  aliased INTEGER NOT NULL,
  xid INTEGER NOT NULL,
  "view" INTEGER DEFAULT 0 NOT NULL,
  PRIMARY KEY (tape_id)
)""",
    """CREATE TABLE tape_imports (
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  PRIMARY KEY (tape_id)
) WITHOUT ROWID""",
    """CREATE TABLE tape_labels (
  tape_id INTEGER NOT NULL,
  label TEXT NOT NULL,
  PRIMARY KEY (tape_id, label)
) WITHOUT ROWID""",
    """CREATE INDEX tape_labels_label ON tape_labels (label, tape_id)""",
    """CREATE TABLE tape_lanes (
  tape_id INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  base_tape INTEGER NOT NULL,
  base_lane INTEGER NOT NULL,
  base_ordinal INTEGER NOT NULL,
  PRIMARY KEY (tape_id, lane)
) WITHOUT ROWID""",
    """CREATE INDEX tape_lanes_base ON tape_lanes (base_lane, tape_id, base_ordinal)""",
    """CREATE TABLE tape_live (
  tape_id INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  placed INTEGER NOT NULL,
  since INTEGER NOT NULL,
  body INTEGER NOT NULL,
  PRIMARY KEY (tape_id, lane, ordinal)
) WITHOUT ROWID""",
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
) WITHOUT ROWID""",
    """CREATE TABLE tape_past (
  tape_id INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  since INTEGER NOT NULL,
  placed INTEGER NOT NULL,
  body INTEGER NOT NULL,
  until INTEGER NOT NULL,
  why TEXT NOT NULL,
  PRIMARY KEY (tape_id, lane, ordinal, since)
) WITHOUT ROWID""",
    """CREATE TABLE tape_slots (
  tape_id INTEGER NOT NULL,
  slot TEXT NOT NULL,
  since INTEGER NOT NULL,
  until INTEGER,
  PRIMARY KEY (tape_id, slot, since)
) WITHOUT ROWID""",
    """CREATE INDEX tape_slots_asked ON tape_slots (slot, tape_id) WHERE until IS NULL AND slot >= '~asked:' AND slot < '~asked;'""",
    """CREATE TABLE tape_tapes (
  id INTEGER NOT NULL,
  tape TEXT NOT NULL,
  owner TEXT,
  agent TEXT,
  name TEXT,
  labels BLOB,
  meta BLOB,
  status TEXT NOT NULL,
  reason TEXT,
  created_at INTEGER NOT NULL,
  completed_at INTEGER,
  redirect TEXT,
  hidden TEXT,
  PRIMARY KEY (id),
  UNIQUE (tape)
)""",
    """CREATE INDEX tape_tapes_agent ON tape_tapes (agent, id)""",
    """CREATE INDEX tape_tapes_hidden ON tape_tapes (id) WHERE hidden IS NOT NULL""",
    """CREATE INDEX tape_tapes_owner ON tape_tapes (owner, id)""",
    """CREATE INDEX tape_tapes_status ON tape_tapes (status, id)""",
    """CREATE TABLE tape_texts (
  position INTEGER NOT NULL,
  tape_id INTEGER NOT NULL,
  seq INTEGER NOT NULL,
  origin INTEGER NOT NULL,
  lane INTEGER NOT NULL,
  ordinal INTEGER NOT NULL,
  excerpt BLOB,
  PRIMARY KEY (position)
)""",
    """CREATE INDEX tape_texts_tape ON tape_texts (tape_id, seq)""",
    """CREATE TABLE tape_tombstones (
  tape_id INTEGER NOT NULL,
  tape TEXT NOT NULL,
  owner TEXT,
  seq INTEGER NOT NULL,
  hash BLOB NOT NULL,
  stamp INTEGER NOT NULL,
  emptied INTEGER NOT NULL,
  PRIMARY KEY (tape_id)
) WITHOUT ROWID""",
    """CREATE INDEX tape_tombstones_tape ON tape_tombstones (tape)""",
    """CREATE TRIGGER tape_entries_no_replace BEFORE INSERT ON tape_entries
WHEN EXISTS (SELECT 1 FROM tape_entries WHERE tape_id = NEW.tape_id AND key = NEW.key)
  OR EXISTS (SELECT 1 FROM tape_entries WHERE tape_id = NEW.tape_id AND seq = NEW.seq)
  OR EXISTS (SELECT 1 FROM tape_entries WHERE position = NEW.position)
BEGIN SELECT RAISE(ABORT, 'tape: entries are immutable'); END""",
    """CREATE TRIGGER tape_entries_no_update BEFORE UPDATE ON tape_entries
WHEN NOT (
  NEW.payload IS NULL AND NEW.meta IS NULL AND NEW.salt IS NULL
  AND typeof(NEW.commitment) = 'blob' AND length(NEW.commitment) = 32
  AND OLD.payload IS NOT NULL AND OLD.commitment IS NULL
  AND EXISTS (SELECT 1 FROM tape_entries e WHERE e.tape_id = OLD.tape_id AND e.kind = 'erase'
              AND e.source_seq = OLD.seq AND e.source_tape IS NULL AND e.seq > OLD.seq)
  AND NEW.position IS OLD.position AND NEW.tape_id IS OLD.tape_id AND NEW.seq IS OLD.seq
  AND NEW.kind IS OLD.kind AND NEW.key IS OLD.key AND NEW.actor IS OLD.actor
  AND NEW.source_tape IS OLD.source_tape AND NEW.source_seq IS OLD.source_seq
  AND NEW.stamp IS OLD.stamp AND NEW.version IS OLD.version
  AND NEW.hash IS OLD.hash AND NEW.head_tape IS OLD.head_tape AND NEW.lane IS OLD.lane
  AND NEW.ordinal IS OLD.ordinal AND NEW.xid IS OLD.xid)
BEGIN SELECT RAISE(ABORT, 'tape: entries are immutable'); END""",
    """CREATE TRIGGER tape_entries_no_delete BEFORE DELETE ON tape_entries
WHEN NOT EXISTS (SELECT 1 FROM tape_tapes t WHERE t.id = OLD.tape_id AND t.status = 'purged')
BEGIN SELECT RAISE(ABORT, 'tape: entries are immutable'); END""",
)

POSTGRESQL = (
    """CREATE TABLE @tape_aliases (
  tape_id BIGINT NOT NULL,
  id TEXT COLLATE "C" NOT NULL,
  seq BIGINT NOT NULL,
  PRIMARY KEY (tape_id, id)
)""",
    """CREATE INDEX tape_aliases_id ON @tape_aliases (id, tape_id)""",
    """CREATE TABLE @tape_anchors (
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  head_tape BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  PRIMARY KEY (tape_id, seq)
)""",
    """CREATE INDEX tape_anchors_name ON @tape_anchors (name, tape_id, seq)""",
    """CREATE INDEX tape_anchors_place ON @tape_anchors (tape_id, head_tape, lane, ordinal, seq)""",
    """CREATE TABLE @tape_answers (
  tape_id BIGINT NOT NULL,
  maker_tape BIGINT NOT NULL,
  maker_lane BIGINT NOT NULL,
  maker_ordinal BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  call TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tape_id, maker_tape, maker_lane, maker_ordinal, lane, ordinal, call)
)""",
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
  salt BYTEA,
  stamp BIGINT NOT NULL,
  version BIGINT NOT NULL,
  hash BYTEA NOT NULL,
  head_tape BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  PRIMARY KEY (tape_id, seq)
)""",
    """CREATE TABLE @tape_calls (
  tape_id BIGINT NOT NULL,
  call TEXT COLLATE "C" NOT NULL,
  seq BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  place_tape BIGINT DEFAULT '0' NOT NULL,
  PRIMARY KEY (tape_id, call, seq)
)""",
    """CREATE TABLE @tape_checks (
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  hash BYTEA NOT NULL,
  stamp BIGINT NOT NULL,
  PRIMARY KEY (tape_id)
)""",
    """CREATE INDEX tape_checks_stamp ON @tape_checks (stamp)""",
    """CREATE TABLE @tape_clears (
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  head_tape BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  hidden BIGINT NOT NULL,
  touched BIGINT NOT NULL,
  until BIGINT,
  PRIMARY KEY (tape_id, seq)
)""",
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
    """CREATE INDEX tape_compactions_place ON @tape_compactions (tape_id, head_tape, lane, ordinal)""",
    """CREATE TABLE @tape_consumers (
  owner TEXT COLLATE "C" NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  xid BIGINT NOT NULL,
  position BIGINT NOT NULL,
  version BIGINT NOT NULL,
  PRIMARY KEY (owner, name)
)""",
    """CREATE TABLE @tape_entries (
  position BIGINT GENERATED ALWAYS AS IDENTITY,
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  kind TEXT NOT NULL,
  key TEXT COLLATE "C" NOT NULL,
  actor TEXT,
  source_tape TEXT,
  source_seq BIGINT,
  payload BYTEA,
  meta BYTEA,
  salt BYTEA,
  stamp BIGINT NOT NULL,
  version BIGINT NOT NULL,
  hash BYTEA NOT NULL,
  head_tape BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  xid BIGINT NOT NULL,
  commitment BYTEA,
  CONSTRAINT tape_entries_seq PRIMARY KEY (tape_id, seq),
  CONSTRAINT tape_entries_key UNIQUE (key, tape_id),
  CONSTRAINT tape_entries_kind CHECK (kind IN ('open', 'append', 'revise', 'retract', 'restore', 'clear', 'anchor', 'handoff', 'compact', 'state', 'block', 'usage', 'event', 'fork', 'merge', 'discard', 'switch', 'status', 'label', 'erase'))
)""",
    """CREATE INDEX tape_entries_feed ON @tape_entries (xid, position)""",
    """CREATE TABLE @tape_epoch (
  base BIGINT NOT NULL,
  PRIMARY KEY (base)
)""",
    """CREATE TABLE @tape_events (
  tape_id BIGINT NOT NULL,
  name TEXT COLLATE "C" NOT NULL,
  seq BIGINT NOT NULL,
  PRIMARY KEY (tape_id, name, seq)
)""",
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
    """CREATE INDEX tape_forks_parent ON @tape_forks (parent_id)""",
    """CREATE TABLE @tape_heads (
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  hash BYTEA NOT NULL,
  stamp BIGINT NOT NULL,
  head_tape BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  lo BIGINT NOT NULL,
  tip BIGINT NOT NULL,
  cleared BIGINT NOT NULL,
  messages BIGINT NOT NULL,
  last_message BIGINT NOT NULL,
  aliased BIGINT NOT NULL,
  xid BIGINT NOT NULL,
  view BIGINT DEFAULT 0 NOT NULL,
  PRIMARY KEY (tape_id)
)""",
    """CREATE TABLE @tape_imports (
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  PRIMARY KEY (tape_id)
)""",
    """CREATE TABLE @tape_labels (
  tape_id BIGINT NOT NULL,
  label TEXT COLLATE "C" NOT NULL,
  PRIMARY KEY (tape_id, label)
)""",
    """CREATE INDEX tape_labels_label ON @tape_labels (label, tape_id)""",
    """CREATE TABLE @tape_lanes (
  tape_id BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  base_tape BIGINT NOT NULL,
  base_lane BIGINT NOT NULL,
  base_ordinal BIGINT NOT NULL,
  PRIMARY KEY (tape_id, lane)
)""",
    """CREATE INDEX tape_lanes_base ON @tape_lanes (base_lane, tape_id, base_ordinal)""",
    """CREATE TABLE @tape_live (
  tape_id BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  placed BIGINT NOT NULL,
  since BIGINT NOT NULL,
  body BIGINT NOT NULL,
  PRIMARY KEY (tape_id, lane, ordinal)
)""",
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
    """CREATE TABLE @tape_past (
  tape_id BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  since BIGINT NOT NULL,
  placed BIGINT NOT NULL,
  body BIGINT NOT NULL,
  until BIGINT NOT NULL,
  why TEXT NOT NULL,
  PRIMARY KEY (tape_id, lane, ordinal, since)
)""",
    """CREATE TABLE @tape_slots (
  tape_id BIGINT NOT NULL,
  slot TEXT COLLATE "C" NOT NULL,
  since BIGINT NOT NULL,
  until BIGINT,
  PRIMARY KEY (tape_id, slot, since)
)""",
    """CREATE INDEX tape_slots_asked ON @tape_slots (slot, tape_id) WHERE until IS NULL AND slot >= '~asked:' AND slot < '~asked;'""",
    """CREATE TABLE @tape_tapes (
  id BIGSERIAL NOT NULL,
  tape TEXT COLLATE "C" NOT NULL,
  owner TEXT COLLATE "C",
  agent TEXT COLLATE "C",
  name TEXT,
  labels BYTEA,
  meta BYTEA,
  status TEXT NOT NULL,
  reason TEXT,
  created_at BIGINT NOT NULL,
  completed_at BIGINT,
  redirect TEXT COLLATE "C",
  hidden TEXT,
  PRIMARY KEY (id),
  UNIQUE (tape)
)""",
    """CREATE INDEX tape_tapes_agent ON @tape_tapes (agent, id)""",
    """CREATE INDEX tape_tapes_hidden ON @tape_tapes (id) WHERE hidden IS NOT NULL""",
    """CREATE INDEX tape_tapes_owner ON @tape_tapes (owner, id)""",
    """CREATE INDEX tape_tapes_status ON @tape_tapes (status, id)""",
    """CREATE TABLE @tape_texts (
  position BIGINT NOT NULL,
  tape_id BIGINT NOT NULL,
  seq BIGINT NOT NULL,
  origin BIGINT NOT NULL,
  lane BIGINT NOT NULL,
  ordinal BIGINT NOT NULL,
  xid BIGINT NOT NULL,
  words TSVECTOR NOT NULL,
  excerpt BYTEA,
  PRIMARY KEY (tape_id, seq)
)""",
    """CREATE INDEX tape_texts_feed ON @tape_texts (xid, position)""",
    """CREATE INDEX tape_texts_words ON @tape_texts USING gin (words) WITH (fastupdate = off)""",
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
    """CREATE INDEX tape_tombstones_tape ON @tape_tombstones (tape)""",
    """CREATE FUNCTION @tape_entries_guard() RETURNS trigger LANGUAGE plpgsql AS $guard$
BEGIN
  IF TG_OP = 'DELETE' THEN
    IF EXISTS (SELECT 1 FROM @tape_tapes t WHERE t.id = OLD.tape_id AND t.status = 'purged') THEN
      RETURN OLD;
    END IF;
  ELSIF TG_OP = 'UPDATE' THEN
    IF NEW.payload IS NULL AND NEW.meta IS NULL AND NEW.salt IS NULL AND length(NEW.commitment) = 32
       AND OLD.payload IS NOT NULL AND OLD.commitment IS NULL
       AND EXISTS (SELECT 1 FROM @tape_entries e WHERE e.tape_id = OLD.tape_id AND e.kind = 'erase'
                   AND e.source_seq = OLD.seq AND e.source_tape IS NULL AND e.seq > OLD.seq)
       AND to_jsonb(NEW) - ARRAY['payload', 'meta', 'salt', 'commitment']
           = to_jsonb(OLD) - ARRAY['payload', 'meta', 'salt', 'commitment'] THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'tape: entries are immutable' USING ERRCODE = 'integrity_constraint_violation';
END $guard$""",
    """CREATE TRIGGER tape_entries_no_change BEFORE UPDATE OR DELETE ON @tape_entries
FOR EACH ROW EXECUTE FUNCTION @tape_entries_guard()""",
    """CREATE TRIGGER tape_entries_no_truncate BEFORE TRUNCATE ON @tape_entries
FOR EACH STATEMENT EXECUTE FUNCTION @tape_entries_guard()""",
)


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    quote = "$guard$"
    while quote in at:
        # The name of the schema is part of the function's body, and must not end it.
        quote = f"${quote[1:-1]}_$"
    for ddl in SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL:
        text = ddl.replace("$guard$", quote).replace("@", at)
        op.get_bind().execute(sa.DDL(text.replace("%", "%%")))
    op.get_bind().execute(sa.DDL(f"INSERT INTO {at.replace('%', '%%')}tape_epoch (base) VALUES (0)"))
