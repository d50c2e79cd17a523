"""A primary key on every table of PostgreSQL: without one Citus cannot move a schema while it is written to."""

import sqlalchemy as sa

from alembic import context, op

revision = "0011"
down_revision = "0010"

# "@" stands for the PostgreSQL schema. On SQLite every table has a key, its own number if no other.
KEY = "ALTER TABLE @tape_epoch ADD CONSTRAINT tape_epoch_pkey PRIMARY KEY (base)"


def upgrade() -> None:
    if op.get_bind().dialect.name == "sqlite":
        return
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    op.get_bind().execute(sa.DDL(KEY.replace("@", at).replace("%", "%%")))
