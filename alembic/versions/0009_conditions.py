"""The seq of the last change of each tape's view, and whether a tape is hidden."""

import sqlalchemy as sa

from alembic import context, op

revision = "0009"
down_revision = "0008"

# "@" stands for the PostgreSQL schema. Each tape is read backwards from its end to the first entry that changed its
# view, which is mostly the last or the one before it.
STATEMENTS = (
    "ALTER TABLE @tape_heads ADD COLUMN view {number} DEFAULT 0 NOT NULL",
    "ALTER TABLE @tape_tapes ADD COLUMN hidden TEXT",
    "CREATE INDEX tape_tapes_hidden ON @tape_tapes (id) WHERE hidden IS NOT NULL",
    """UPDATE @tape_heads SET view = coalesce((
  SELECT e.seq FROM @tape_entries e
  WHERE e.tape_id = tape_heads.tape_id
    AND e.kind NOT IN ('open', 'usage', 'event', 'fork', 'merge', 'discard', 'status', 'label')
  ORDER BY e.seq DESC LIMIT 1), (SELECT 1 FROM @tape_forks f WHERE f.tape_id = tape_heads.tape_id), 0)""",
)


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    number = "INTEGER" if op.get_bind().dialect.name == "sqlite" else "BIGINT"
    for statement in STATEMENTS:
        ddl = statement.replace("{number}", number).replace("@", at)
        op.get_bind().execute(sa.DDL(ddl.replace("%", "%%")))
