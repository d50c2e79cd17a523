"""Row-level security on PostgreSQL: the database itself hides other owners' tapes, as an option under the store.

    with engine.begin() as connection:
        rls.enable(connection, role="app", schema="history")

The role then sees only tapes whose owner is the session's ``tape.owner`` setting, which the URL can carry:
``postgresql+psycopg://app@host/name?options=-ctape.owner%3Duser-1``. Owners and superusers of the tables are not bound.

Such a role cannot fill the search index, which is one for all owners: what the index lacks is scanned in each search.
A process with the rights of the tables' owner, which opens the store first and searches now and then, keeps it filled.
"""

from __future__ import annotations

import sqlalchemy as sa

from tape.db.engine.connect import prefix_name, schema_name
from tape.db.schema.found import is_sharded
from tape.db.schema.guards import in_schema, run_ddl
from tape.db.schema.tables import PREFIX, Tables
from tape.errors import InvalidEntry, StoreFailed

__all__ = ["disable", "enable", "policies"]

_OWN = "owner = nullif(current_setting('tape.owner', true), '')"
"""No owner is named by an empty setting; the rows of the search index have the empty owner."""


def policies(role: str, schema: str | None = None, prefix: str = PREFIX) -> list[str]:
    """Return the statements that let ``role`` use the tables, and in them only the rows of its session's owner."""
    quoted, at = _quoted(role), _before(schema)
    tables = Tables("postgresql", schema, prefix_name(prefix))
    tapes = tables.tapes.name
    ddl = [] if schema is None else [f"GRANT USAGE ON SCHEMA {at[:-1]} TO {quoted}"]
    ddl.append(f"GRANT USAGE ON SEQUENCE {at}{tapes}_id_seq TO {quoted}")
    for table in tables.metadata.sorted_tables:
        if table in _shared(tables):
            ddl.append(f"GRANT SELECT ON {at}{table.name} TO {quoted}")
            continue
        # Sub-selects are subject to the policy of the table they read, so one rule on the tapes serves all.
        mine = f"EXISTS (SELECT 1 FROM {at}{tapes} t WHERE t.id = tape_id)" if "tape_id" in table.c else _OWN
        ddl += [
            f"GRANT SELECT, INSERT, UPDATE, DELETE ON {at}{table.name} TO {quoted}",
            f"ALTER TABLE {at}{table.name} ENABLE ROW LEVEL SECURITY",
            f"DROP POLICY IF EXISTS tape_owner ON {at}{table.name}",
            f"CREATE POLICY tape_owner ON {at}{table.name} TO {quoted} USING ({mine}) WITH CHECK ({mine})",
        ]
        if table is tables.consumers:
            # How far the search index has come is for all to see, and for none of them to change.
            ddl += [
                f"DROP POLICY IF EXISTS tape_index ON {at}{table.name}",
                f"CREATE POLICY tape_index ON {at}{table.name} FOR SELECT TO {quoted} USING (owner = '')",
            ]
    return ddl


def enable(connection: sa.Connection, *, role: str, schema: str | None = None, prefix: str = PREFIX) -> None:
    """Bind a role to the owner of its session. Run it again after an upgrade that brings new tables.

    Raises StoreFailed for a schema on a worker of a Citus cluster, which takes no such policies.
    """
    if is_sharded(connection.exec_driver_sql, schema):
        raise StoreFailed("Citus does not support row-level security by owner; give each owner a schema and a role")
    for statement in policies(role, schema, prefix):
        run_ddl(connection, statement)


def disable(connection: sa.Connection, *, schema: str | None = None, prefix: str = PREFIX) -> None:
    """Take row-level security off the tables again."""
    at = _before(schema)
    tables = Tables("postgresql", schema, prefix_name(prefix))
    for table in tables.metadata.sorted_tables:
        if table not in _shared(tables):
            run_ddl(connection, f"DROP POLICY IF EXISTS tape_index ON {at}{table.name}")
            run_ddl(connection, f"DROP POLICY IF EXISTS tape_owner ON {at}{table.name}")
            run_ddl(connection, f"ALTER TABLE {at}{table.name} DISABLE ROW LEVEL SECURITY")


def _shared(tables: Tables) -> tuple[sa.Table, ...]:
    """Return the tables in which nothing belongs to one owner."""
    return tables.version, tables.epoch


def _before(schema: str | None) -> str:
    return "" if schema is None else in_schema(schema_name(schema))


def _quoted(name: str) -> str:
    if not isinstance(name, str) or not name or "\0" in name:
        raise InvalidEntry("role", f"must be a PostgreSQL role name, not {name!r}")
    return '"' + name.replace('"', '""') + '"'
