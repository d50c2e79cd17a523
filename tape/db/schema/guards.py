"""The triggers by which the database itself keeps entries immutable, and how DDL is run in any schema."""

from __future__ import annotations

import sqlalchemy as sa

__all__ = ["guards", "in_schema", "run_ddl"]

_SQLITE_GUARDS = (
    # INSERT OR REPLACE deletes the row in its way without firing a delete trigger, so it has to be caught here.
    """CREATE TRIGGER tape_entries_no_replace BEFORE INSERT ON tape_entries
WHEN EXISTS (SELECT 1 FROM tape_entries WHERE tape_id = NEW.tape_id AND key = NEW.key)
  OR EXISTS (SELECT 1 FROM tape_entries WHERE tape_id = NEW.tape_id AND seq = NEW.seq)
  OR EXISTS (SELECT 1 FROM tape_entries WHERE position = NEW.position)
BEGIN SELECT RAISE(ABORT, 'tape: entries are immutable'); END""",
    # The one permitted change removes the content of an entry once an erase entry names its seq.
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


def in_schema(schema: str | None) -> str:
    """Return what stands before the name of a table in SQL: the schema, quoted so that it is a name and no more."""
    return "" if schema is None else '"' + schema.replace('"', '""') + '".'


def run_ddl(connection: sa.Connection, text: str) -> None:
    """Run a statement as it stands: a per cent sign in it is no place of a parameter."""
    connection.execute(sa.DDL(text.replace("%", "%%")))  # type: ignore[no-untyped-call]


def _postgresql_guards(schema: str | None) -> tuple[str, ...]:
    at = in_schema(schema)
    quote = "$guard$"
    while quote in at:
        # The name of the schema stands inside the function's body, and must not end it.
        quote = f"${quote[1:-1]}_$"
    return (
        f"""CREATE FUNCTION {at}tape_entries_guard() RETURNS trigger LANGUAGE plpgsql AS {quote}
BEGIN
  IF TG_OP = 'DELETE' THEN
    IF EXISTS (SELECT 1 FROM {at}tape_tapes t WHERE t.id = OLD.tape_id AND t.status = 'purged') THEN
      RETURN OLD;
    END IF;
  ELSIF TG_OP = 'UPDATE' THEN
    IF NEW.payload IS NULL AND NEW.meta IS NULL AND NEW.salt IS NULL AND length(NEW.commitment) = 32
       AND OLD.payload IS NOT NULL AND OLD.commitment IS NULL
       AND EXISTS (SELECT 1 FROM {at}tape_entries e WHERE e.tape_id = OLD.tape_id AND e.kind = 'erase'
                   AND e.source_seq = OLD.seq AND e.source_tape IS NULL AND e.seq > OLD.seq)
       AND to_jsonb(NEW) - ARRAY['payload', 'meta', 'salt', 'commitment']
           = to_jsonb(OLD) - ARRAY['payload', 'meta', 'salt', 'commitment'] THEN
      RETURN NEW;
    END IF;
  END IF;
  RAISE EXCEPTION 'tape: entries are immutable' USING ERRCODE = 'integrity_constraint_violation';
END {quote}""",
        f"""CREATE TRIGGER tape_entries_no_change BEFORE UPDATE OR DELETE ON {at}tape_entries
FOR EACH ROW EXECUTE FUNCTION {at}tape_entries_guard()""",
        f"""CREATE TRIGGER tape_entries_no_truncate BEFORE TRUNCATE ON {at}tape_entries
FOR EACH STATEMENT EXECUTE FUNCTION {at}tape_entries_guard()""",
    )


def guards(dialect: str, schema: str | None) -> tuple[str, ...]:
    """Return the triggers by which the database itself keeps entries immutable."""
    return _SQLITE_GUARDS if dialect == "sqlite" else _postgresql_guards(schema)
