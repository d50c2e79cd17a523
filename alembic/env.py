"""Runs the revisions on the connection that ``tape.open`` holds, or on ``-x url=`` from the command line."""

from sqlalchemy import Connection, create_engine

from alembic import context

config = context.config


def run(connection: Connection) -> None:
    schema = config.attributes.get("schema")
    context.configure(
        connection=connection,
        version_table="tape_version",
        version_table_schema=schema,
        transactional_ddl=True,
    )
    with context.begin_transaction():
        context.run_migrations()


given = config.attributes.get("connection")
if given is not None:
    run(given)
else:
    with create_engine(context.get_x_argument(as_dictionary=True)["url"]).begin() as connection:
        run(connection)
