"""Open requests of all tapes, found by index."""

import sqlalchemy as sa

from alembic import context, op

revision = "0010"
down_revision = "0009"

# "@" stands for the PostgreSQL schema. Only open requests are in it, whatever else has slots.
INDEX = """CREATE INDEX tape_slots_asked ON @tape_slots (slot, tape_id)
WHERE until IS NULL AND slot >= '~asked:' AND slot < '~asked;'"""


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    op.get_bind().execute(sa.DDL(INDEX.replace("@", at).replace("%", "%%")))
