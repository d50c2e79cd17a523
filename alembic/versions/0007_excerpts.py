"""The beginning of long texts beside the index, so that a hit is shown without reading all of it."""

import sqlalchemy as sa

from alembic import context, op

revision = "0007"
down_revision = "0006"

# "@" stands for the PostgreSQL schema.
SQLITE = "ALTER TABLE tape_texts ADD COLUMN excerpt BLOB"
POSTGRESQL = "ALTER TABLE @tape_texts ADD COLUMN excerpt BYTEA"


def upgrade() -> None:
    schema = context.config.attributes.get("schema")
    at = '"' + schema.replace('"', '""') + '".' if schema else ""
    ddl = SQLITE if op.get_bind().dialect.name == "sqlite" else POSTGRESQL
    op.get_bind().execute(sa.DDL(ddl.replace("@", at).replace("%", "%%")))
