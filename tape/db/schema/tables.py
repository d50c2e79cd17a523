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
from sqlalchemy.schema import SchemaItem

from tape.core.entries.payloads import KINDS

__all__ = ["REVISION", "Tables"]

REVISION = "0007"
"""The Alembic revision that these tables are at."""

# SQLite numbers rows only in a column that is exactly INTEGER; everything else is 64 bits on both engines.
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# Ids compare bytewise on both engines, whatever the database's locale.
_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


def _number(name: str, *args: SchemaItem, null: bool = False, **kw: object) -> sa.Column[int]:
    return sa.Column(name, _BIG, *args, nullable=null, autoincrement=False, **kw)  # type: ignore[arg-type]


def _recorded() -> list[sa.Column[Any]]:
    """Return what is recorded of an entry behind its tape and seq."""
    return [
        sa.Column("kind", sa.Text, nullable=False),
        sa.Column("key", _ID, nullable=False),
        sa.Column("actor", sa.Text),
        sa.Column("source_tape", sa.Text),
        _number("source_seq", null=True),
        sa.Column("payload", sa.LargeBinary),
        sa.Column("meta", sa.LargeBinary),
        _number("stamp"),
        _number("version"),
        sa.Column("hash", sa.LargeBinary, nullable=False),
        _number("head_tape"),
        _number("lane"),
        _number("ordinal"),
    ]


def _words() -> list[SchemaItem]:
    """Return what PostgreSQL keeps of a text beside its place: its words, and the order of the feed."""
    # Not at the top: a store on SQLite has no need of this dialect, whose import takes as long as opening the store.
    from sqlalchemy.dialects.postgresql import TSVECTOR

    return [
        _number("xid"),
        sa.Column("words", TSVECTOR, nullable=False),
        sa.Index("tape_texts_feed", "xid", "position"),
        sa.Index("tape_texts_words", "words", postgresql_using="gin", postgresql_with={"fastupdate": "off"}),
    ]


class Tables:
    """The tables of one store, in the given PostgreSQL schema if there is one."""

    def __init__(self, dialect: str, schema: str | None = None) -> None:
        self.schema = schema
        self.postgres = dialect == "postgresql"
        self.metadata = sa.MetaData(schema=schema)
        self._tapes()
        self._entries()
        self._messages()
        self._tool_calls()
        self._marks()
        self._families()
        self._upkeep()
        self._following()
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

    def _table(self, name: str, *columns: sa.Column[object] | SchemaItem, rowid: bool = False) -> sa.Table:
        return sa.Table(name, self.metadata, *columns, sqlite_with_rowid=rowid)

    def _tapes(self) -> None:
        """Tapes and their heads, and the version of the schema."""
        # As Alembic makes it, so that a new database and an upgraded one have the same catalog.
        self.version = self._table(
            "tape_version",
            sa.Column("version_num", sa.String(32), nullable=False),
            sa.PrimaryKeyConstraint("version_num", name="tape_version_pkc"),
            rowid=True,
        )

        self.tapes = self._table(
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
            _number("created_at"),
            _number("completed_at", null=True),
            sa.Column("redirect", _ID),
            # Listings go by the number, in which no append changes anything.
            sa.Index("tape_tapes_owner", "owner", "id"),
            sa.Index("tape_tapes_agent", "agent", "id"),
            sa.Index("tape_tapes_status", "status", "id"),
            rowid=True,
        )

        self.heads = self._table(
            "tape_heads",
            _number("tape_id", primary_key=True),
            _number("seq"),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            _number("stamp"),
            _number("head_tape"),
            _number("lane"),
            _number("ordinal"),
            _number("lo"),
            _number("tip"),
            _number("cleared"),
            _number("messages"),
            _number("last_message"),
            _number("aliased"),
            _number("xid"),
            rowid=True,
        )

    def _entries(self) -> None:
        """What is recorded."""
        postgres = self.postgres
        self.entries = self._table(
            "tape_entries",
            # SQLite clusters the table by this number, which makes it the cheapest key there is and the order of the
            # feed. PostgreSQL needs no index on it, and a distributed table could not have one without the tape.
            sa.Column("position", _BIG, sa.Identity(always=True), primary_key=not postgres, nullable=False),
            _number("tape_id"),
            _number("seq"),
            *_recorded(),
            _number("xid"),
            (sa.PrimaryKeyConstraint if postgres else sa.UniqueConstraint)("tape_id", "seq", name="tape_entries_seq"),
            # Not the tape first on PostgreSQL: a plan made while tapes are short, and then kept, could take either
            # index to find an entry by its seq, and with this one it would read the whole tape for each.
            sa.UniqueConstraint(*(("key", "tape_id") if postgres else ("tape_id", "key")), name="tape_entries_key"),
            sa.CheckConstraint(f"kind IN ({', '.join(repr(kind) for kind in KINDS)})", name="tape_entries_kind"),
            rowid=True,
        )

        if postgres:
            # The order of the feed. SQLite has it in the rowid.
            sa.Index("tape_entries_feed", self.entries.c.xid, self.entries.c.position)

    def _messages(self) -> None:
        """The view of messages: what holds, what held, lanes and ids."""
        self.live = self._table(
            "tape_live",
            _number("tape_id", primary_key=True),
            _number("lane", primary_key=True),
            _number("ordinal", primary_key=True),
            _number("placed"),
            _number("since"),
            _number("body"),
        )

        self.past = self._table(
            "tape_past",
            _number("tape_id", primary_key=True),
            _number("lane", primary_key=True),
            _number("ordinal", primary_key=True),
            _number("since", primary_key=True),
            _number("placed"),
            _number("body"),
            _number("until"),
            sa.Column("why", sa.Text, nullable=False),
        )

        self.lanes = self._table(
            "tape_lanes",
            _number("tape_id", primary_key=True),
            _number("lane", primary_key=True),
            _number("base_tape"),
            _number("base_lane"),
            _number("base_ordinal"),
            # Not the tape first: most tapes have one lane, so PostgreSQL would take this index as gladly as the key to
            # look up a lane, and then read every lane of a tape that has thousands.
            sa.Index("tape_lanes_base", "base_lane", "tape_id", "base_ordinal"),
        )

        self.aliases = self._table(
            "tape_aliases",
            _number("tape_id", primary_key=True),
            sa.Column("id", _ID, primary_key=True),
            _number("seq"),
        )

    def _tool_calls(self) -> None:
        """The view of tool calls and their results."""
        self.calls = self._table(
            "tape_calls",
            _number("tape_id", primary_key=True),
            sa.Column("call", _ID, primary_key=True),
            _number("seq", primary_key=True),
            _number("lane"),
            _number("ordinal"),
            _number("place_tape", server_default="0"),
        )

        self.answers = self._table(
            "tape_answers",
            _number("tape_id", primary_key=True),
            _number("maker_tape", primary_key=True),
            _number("maker_lane", primary_key=True),
            _number("maker_ordinal", primary_key=True),
            _number("lane", primary_key=True),
            _number("ordinal", primary_key=True),
            sa.Column("call", _ID, primary_key=True),
        )

    def _marks(self) -> None:
        """The view of what stands beside messages: anchors, clears, slots and summaries."""
        self.anchors = self._table(
            "tape_anchors",
            _number("tape_id", primary_key=True),
            _number("seq", primary_key=True),
            sa.Column("name", _ID, nullable=False),
            _number("head_tape"),
            _number("lane"),
            _number("ordinal"),
            sa.Index("tape_anchors_place", "tape_id", "head_tape", "lane", "ordinal", "seq"),
            sa.Index("tape_anchors_name", "name", "tape_id", "seq"),
        )

        self.clears = self._table(
            "tape_clears",
            _number("tape_id", primary_key=True),
            _number("seq", primary_key=True),
            _number("head_tape"),
            _number("lane"),
            _number("ordinal"),
            _number("hidden"),
            _number("touched"),
            _number("until", null=True),
        )

        self.slots = self._table(
            "tape_slots",
            _number("tape_id", primary_key=True),
            sa.Column("slot", _ID, primary_key=True),
            _number("since", primary_key=True),
            _number("until", null=True),
        )

        self.compactions = self._table(
            "tape_compactions",
            _number("tape_id", primary_key=True),
            _number("origin", primary_key=True),
            _number("seq", primary_key=True),
            _number("since", primary_key=True),
            _number("head_tape"),
            _number("lane"),
            _number("ordinal"),
            _number("lo"),
            _number("gone"),
            _number("revised"),
            _number("loose"),
            _number("until", null=True),
            sa.Index("tape_compactions_place", "tape_id", "head_tape", "lane", "ordinal"),
        )

    def _families(self) -> None:
        """The view of forks and labels."""
        self.forks = self._table(
            "tape_forks",
            _number("tape_id", primary_key=True),
            _number("parent_id"),
            _number("seq"),
            sa.Column("lineage", sa.LargeBinary, nullable=False),
            sa.Column("state", sa.Text, nullable=False),
            _number("merged"),
            _number("merge_seq"),
            sa.Index("tape_forks_parent", "parent_id"),
        )

        self.overrides = self._table(
            "tape_overrides",
            _number("tape_id", primary_key=True),
            _number("origin", primary_key=True),
            _number("lane", primary_key=True),
            _number("ordinal", primary_key=True),
            _number("since", primary_key=True),
            _number("placed"),
            _number("body_tape"),
            _number("body", null=True),
            _number("until", null=True),
            sa.Column("why", sa.Text, nullable=False),
        )

        self.labels = self._table(
            "tape_labels",
            _number("tape_id", primary_key=True),
            sa.Column("label", _ID, primary_key=True),
            sa.Index("tape_labels_label", "label", "tape_id"),
        )

    def _upkeep(self) -> None:
        """What maintenance keeps: tombstones, checks and imports."""
        # What is left of a purged tape, beside its rows in tapes and heads and its last entry.
        self.tombstones = self._table(
            "tape_tombstones",
            _number("tape_id", primary_key=True),
            sa.Column("tape", _ID, nullable=False),
            sa.Column("owner", _ID),
            _number("seq"),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            _number("stamp"),
            _number("emptied"),
            sa.Index("tape_tombstones_tape", "tape"),
        )

        # Up to where a tape was last found intact.
        self.checks = self._table(
            "tape_checks",
            _number("tape_id", primary_key=True),
            _number("seq"),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            _number("stamp"),
            sa.Index("tape_checks_stamp", "stamp"),
        )

        # Up to where a tape came from another store: what it cites of tapes that stayed there is not missing.
        self.imports = self._table(
            "tape_imports",
            _number("tape_id", primary_key=True),
            _number("seq"),
        )

        # The entries of an import that is under way, in the columns of the entries that they will be.
        self.arrivals = self._table(
            "tape_arrivals",
            _number("tape_id", primary_key=True),
            _number("seq", primary_key=True),
            *_recorded(),
        )

    def _following(self) -> None:
        """The feed and the search index."""
        postgres = self.postgres
        self.epoch = self._table("tape_epoch", _number("base"), rowid=True)
        """What is added to every transaction id, so that they go on rising in a database that was restored."""

        self.texts = self._table(
            "tape_texts",
            _number("position", primary_key=not postgres),
            _number("tape_id", primary_key=postgres),
            _number("seq", primary_key=postgres),
            _number("origin"),
            _number("lane"),
            _number("ordinal"),
            *(_words() if postgres else [sa.Index("tape_texts_tape", "tape_id", "seq")]),
            sa.Column("excerpt", sa.LargeBinary),
            rowid=True,
        )
        """The bodies that are indexed, each with its message's place, and the beginning of those that are long.

        On SQLite the words are in a table beside it.
        """

        self.consumers = self._table(
            "tape_consumers",
            sa.Column("owner", _ID, primary_key=True),
            sa.Column("name", _ID, primary_key=True),
            _number("xid"),
            _number("position"),
            _number("version"),
        )
        """How far each reader of the feed has come; the search index is one of them."""
