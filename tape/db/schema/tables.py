"""The tables. All are named ``tape_*``, so that they can live beside an application's own.

``tape_entries`` is the truth and is guarded by triggers. ``tape_tapes`` is what rarely changes of a tape,
``tape_heads`` what every append changes. All other tables are the view: rows that the projector derives and
``rebuild`` can make again.

Every key but that of the tape's name begins with the tape's number, and no index holds a column that every append
changes. That keeps appends cheap and lets the tables be distributed by tape.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.dialects.postgresql import TSVECTOR
from sqlalchemy.schema import SchemaItem

from tape.core.entries.payloads import KINDS

__all__ = ["REVISION", "Tables", "guards", "in_schema", "run_ddl"]

REVISION = "0007"
"""The Alembic revision that these tables are at."""

# SQLite numbers rows only in a column that is exactly INTEGER; everything else is 64 bits on both engines.
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# Ids compare bytewise on both engines, whatever the database's locale.
_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


class Tables:
    """The tables of one store, in the given PostgreSQL schema if there is one."""

    def __init__(self, dialect: str, schema: str | None = None) -> None:
        self.schema = schema
        postgres = dialect == "postgresql"
        self.metadata = metadata = sa.MetaData(schema=schema)

        def table(name: str, *columns: sa.Column[object] | SchemaItem, rowid: bool = False) -> sa.Table:
            return sa.Table(name, metadata, *columns, sqlite_with_rowid=rowid)

        def number(name: str, *args: SchemaItem, null: bool = False, **kw: object) -> sa.Column[int]:
            return sa.Column(name, _BIG, *args, nullable=null, autoincrement=False, **kw)  # type: ignore[arg-type]

        def recorded() -> list[sa.Column[Any]]:
            """What is recorded of an entry behind its tape and seq."""
            return [
                sa.Column("kind", sa.Text, nullable=False),
                sa.Column("key", _ID, nullable=False),
                sa.Column("actor", sa.Text),
                sa.Column("source_tape", sa.Text),
                number("source_seq", null=True),
                sa.Column("payload", sa.LargeBinary),
                sa.Column("meta", sa.LargeBinary),
                number("stamp"),
                number("version"),
                sa.Column("hash", sa.LargeBinary, nullable=False),
                number("head_tape"),
                number("lane"),
                number("ordinal"),
            ]

        # As Alembic makes it, so that a new database and an upgraded one have the same catalog.
        self.version = table(
            "tape_version",
            sa.Column("version_num", sa.String(32), nullable=False),
            sa.PrimaryKeyConstraint("version_num", name="tape_version_pkc"),
            rowid=True,
        )

        self.tapes = table(
            "tape_tapes",
            sa.Column("id", _BIG, primary_key=True, autoincrement=True),
            sa.Column("tape", _ID, nullable=False, unique=True),
            sa.Column("owner", _ID),
            sa.Column("agent", _ID),
            sa.Column("name", sa.Text),
            sa.Column("labels", sa.LargeBinary),
            sa.Column("meta", sa.LargeBinary),
            sa.Column("status", sa.Text, nullable=False),
            sa.Column("reason", sa.Text),
            number("created_at"),
            number("completed_at", null=True),
            sa.Column("redirect", _ID),
            # Listings go by the number, in which no append changes anything.
            sa.Index("tape_tapes_owner", "owner", "id"),
            sa.Index("tape_tapes_agent", "agent", "id"),
            sa.Index("tape_tapes_status", "status", "id"),
            rowid=True,
        )

        self.heads = table(
            "tape_heads",
            number("tape_id", primary_key=True),
            number("seq"),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            number("stamp"),
            number("head_tape"),
            number("lane"),
            number("ordinal"),
            number("lo"),
            number("tip"),
            number("cleared"),
            number("messages"),
            number("last_message"),
            number("aliased"),
            number("xid"),
            rowid=True,
        )

        self.entries = table(
            "tape_entries",
            # SQLite clusters the table by this number, which makes it the cheapest key there is and the order of the
            # feed. PostgreSQL needs no index on it, and a distributed table could not have one without the tape.
            sa.Column("position", _BIG, sa.Identity(always=True), primary_key=not postgres, nullable=False),
            number("tape_id"),
            number("seq"),
            *recorded(),
            number("xid"),
            (sa.PrimaryKeyConstraint if postgres else sa.UniqueConstraint)("tape_id", "seq", name="tape_entries_seq"),
            # Not the tape first on PostgreSQL: a plan made while tapes are short, and then kept, could take either
            # index to find an entry by its seq, and with this one it would read the whole tape for each.
            sa.UniqueConstraint(*(("key", "tape_id") if postgres else ("tape_id", "key")), name="tape_entries_key"),
            sa.CheckConstraint(f"kind IN ({', '.join(repr(kind) for kind in KINDS)})", name="tape_entries_kind"),
            rowid=True,
        )

        self.live = table(
            "tape_live",
            number("tape_id", primary_key=True),
            number("lane", primary_key=True),
            number("ordinal", primary_key=True),
            number("placed"),
            number("since"),
            number("body"),
        )

        self.past = table(
            "tape_past",
            number("tape_id", primary_key=True),
            number("lane", primary_key=True),
            number("ordinal", primary_key=True),
            number("since", primary_key=True),
            number("placed"),
            number("body"),
            number("until"),
            sa.Column("why", sa.Text, nullable=False),
        )

        self.lanes = table(
            "tape_lanes",
            number("tape_id", primary_key=True),
            number("lane", primary_key=True),
            number("base_tape"),
            number("base_lane"),
            number("base_ordinal"),
            # Not the tape first: most tapes have one lane, so PostgreSQL would take this index as gladly as the key to
            # look up a lane, and then read every lane of a tape that has thousands.
            sa.Index("tape_lanes_base", "base_lane", "tape_id", "base_ordinal"),
        )

        self.aliases = table(
            "tape_aliases",
            number("tape_id", primary_key=True),
            sa.Column("id", _ID, primary_key=True),
            number("seq"),
        )

        self.calls = table(
            "tape_calls",
            number("tape_id", primary_key=True),
            sa.Column("call", _ID, primary_key=True),
            number("seq", primary_key=True),
            number("lane"),
            number("ordinal"),
            number("place_tape", server_default="0"),
        )

        self.answers = table(
            "tape_answers",
            number("tape_id", primary_key=True),
            number("maker_tape", primary_key=True),
            number("maker_lane", primary_key=True),
            number("maker_ordinal", primary_key=True),
            number("lane", primary_key=True),
            number("ordinal", primary_key=True),
            sa.Column("call", _ID, primary_key=True),
        )

        self.anchors = table(
            "tape_anchors",
            number("tape_id", primary_key=True),
            number("seq", primary_key=True),
            sa.Column("name", _ID, nullable=False),
            number("head_tape"),
            number("lane"),
            number("ordinal"),
            sa.Index("tape_anchors_place", "tape_id", "head_tape", "lane", "ordinal", "seq"),
            sa.Index("tape_anchors_name", "name", "tape_id", "seq"),
        )

        self.clears = table(
            "tape_clears",
            number("tape_id", primary_key=True),
            number("seq", primary_key=True),
            number("head_tape"),
            number("lane"),
            number("ordinal"),
            number("hidden"),
            number("touched"),
            number("until", null=True),
        )

        self.slots = table(
            "tape_slots",
            number("tape_id", primary_key=True),
            sa.Column("slot", _ID, primary_key=True),
            number("since", primary_key=True),
            number("until", null=True),
        )

        self.forks = table(
            "tape_forks",
            number("tape_id", primary_key=True),
            number("parent_id"),
            number("seq"),
            sa.Column("lineage", sa.LargeBinary, nullable=False),
            sa.Column("state", sa.Text, nullable=False),
            number("merged"),
            number("merge_seq"),
            sa.Index("tape_forks_parent", "parent_id"),
        )

        self.overrides = table(
            "tape_overrides",
            number("tape_id", primary_key=True),
            number("origin", primary_key=True),
            number("lane", primary_key=True),
            number("ordinal", primary_key=True),
            number("since", primary_key=True),
            number("placed"),
            number("body_tape"),
            number("body", null=True),
            number("until", null=True),
            sa.Column("why", sa.Text, nullable=False),
        )

        self.labels = table(
            "tape_labels",
            number("tape_id", primary_key=True),
            sa.Column("label", _ID, primary_key=True),
            sa.Index("tape_labels_label", "label", "tape_id"),
        )

        # What is left of a purged tape, beside its rows in tapes and heads and its last entry.
        self.tombstones = table(
            "tape_tombstones",
            number("tape_id", primary_key=True),
            sa.Column("tape", _ID, nullable=False),
            sa.Column("owner", _ID),
            number("seq"),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            number("stamp"),
            number("emptied"),
            sa.Index("tape_tombstones_tape", "tape"),
        )

        # Up to where a tape was last found intact.
        self.checks = table(
            "tape_checks",
            number("tape_id", primary_key=True),
            number("seq"),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            number("stamp"),
            sa.Index("tape_checks_stamp", "stamp"),
        )

        # Up to where a tape came from another store: what it cites of tapes that stayed there is not missing.
        self.imports = table(
            "tape_imports",
            number("tape_id", primary_key=True),
            number("seq"),
        )

        # The entries of an import that is under way, in the columns of the entries that they will be.
        self.arrivals = table(
            "tape_arrivals",
            number("tape_id", primary_key=True),
            number("seq", primary_key=True),
            *recorded(),
        )

        self.compactions = table(
            "tape_compactions",
            number("tape_id", primary_key=True),
            number("origin", primary_key=True),
            number("seq", primary_key=True),
            number("since", primary_key=True),
            number("head_tape"),
            number("lane"),
            number("ordinal"),
            number("lo"),
            number("gone"),
            number("revised"),
            number("loose"),
            number("until", null=True),
            sa.Index("tape_compactions_place", "tape_id", "head_tape", "lane", "ordinal"),
        )

        if postgres:
            # The order of the feed. SQLite has it in the rowid.
            sa.Index("tape_entries_feed", self.entries.c.xid, self.entries.c.position)

        self.epoch = table("tape_epoch", number("base"), rowid=True)
        """What is added to every transaction id, so that they go on rising in a database that was restored."""

        self.texts = table(
            "tape_texts",
            number("position", primary_key=not postgres),
            number("tape_id", primary_key=postgres),
            number("seq", primary_key=postgres),
            number("origin"),
            number("lane"),
            number("ordinal"),
            *(
                (
                    number("xid"),
                    sa.Column("words", TSVECTOR, nullable=False),
                    sa.Index("tape_texts_feed", "xid", "position"),
                    sa.Index(
                        "tape_texts_words", "words", postgresql_using="gin", postgresql_with={"fastupdate": "off"}
                    ),
                )
                if postgres
                else (sa.Index("tape_texts_tape", "tape_id", "seq"),)
            ),
            sa.Column("excerpt", sa.LargeBinary),
            rowid=True,
        )
        """The bodies that are indexed, each with its message's place, and the beginning of those that are long.

        On SQLite the words are in a table beside it.
        """

        self.consumers = table(
            "tape_consumers",
            sa.Column("owner", _ID, primary_key=True),
            sa.Column("name", _ID, primary_key=True),
            number("xid"),
            number("position"),
            number("version"),
        )
        """How far each reader of the feed has come; the search index is one of them."""

        self.view = (
            self.live,
            self.past,
            self.lanes,
            self.aliases,
            self.calls,
            self.answers,
            self.anchors,
            self.clears,
            self.slots,
            self.forks,
            self.overrides,
            self.compactions,
            self.labels,
        )
        """Every table that ``rebuild`` empties and fills again."""


_SQLITE_GUARDS = (
    # INSERT OR REPLACE deletes the row in its way without firing a delete trigger, so it has to be caught here.
    """CREATE TRIGGER tape_entries_no_replace BEFORE INSERT ON tape_entries
WHEN EXISTS (SELECT 1 FROM tape_entries WHERE tape_id = NEW.tape_id AND key = NEW.key)
  OR EXISTS (SELECT 1 FROM tape_entries WHERE tape_id = NEW.tape_id AND seq = NEW.seq)
  OR EXISTS (SELECT 1 FROM tape_entries WHERE position = NEW.position)
BEGIN SELECT RAISE(ABORT, 'tape: entries are immutable'); END""",
    # The one permitted change takes a payload away once an erase entry names its seq; nothing else may differ.
    """CREATE TRIGGER tape_entries_no_update BEFORE UPDATE ON tape_entries
WHEN NOT (
  NEW.payload IS NULL AND OLD.payload IS NOT NULL
  AND EXISTS (SELECT 1 FROM tape_entries e WHERE e.tape_id = OLD.tape_id AND e.kind = 'erase'
              AND e.source_seq = OLD.seq AND e.source_tape IS NULL)
  AND NEW.position IS OLD.position AND NEW.tape_id IS OLD.tape_id AND NEW.seq IS OLD.seq
  AND NEW.kind IS OLD.kind AND NEW.key IS OLD.key AND NEW.actor IS OLD.actor
  AND NEW.source_tape IS OLD.source_tape AND NEW.source_seq IS OLD.source_seq
  AND NEW.meta IS OLD.meta AND NEW.stamp IS OLD.stamp AND NEW.version IS OLD.version
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
    IF NEW.payload IS NULL AND OLD.payload IS NOT NULL
       AND EXISTS (SELECT 1 FROM {at}tape_entries e WHERE e.tape_id = OLD.tape_id AND e.kind = 'erase'
                   AND e.source_seq = OLD.seq AND e.source_tape IS NULL)
       AND (to_jsonb(NEW) - 'payload') = (to_jsonb(OLD) - 'payload') THEN
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
