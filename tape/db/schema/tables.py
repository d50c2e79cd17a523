"""The tables. All are named ``tape_*``, so that they can live beside an application's own.

A store may have another prefix. What is declared here, in the guards and in the revisions has its usual name, and gets
the store's own when it is made.

``tape_entries`` is the truth and is guarded by triggers. ``tape_tapes`` is what rarely changes of a tape,
``tape_heads`` what every append changes. All other tables are the view: rows that the projector derives and
``rebuild`` can make again.

Every key but those of a tape's name and of an entry's key begins with the tape's number, and no index holds a column
that every append changes. That keeps appends cheap and lets the tables be distributed by tape.
"""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from sqlalchemy.schema import SchemaItem

from tape.core.entries.payloads import KINDS
from tape.db.schema.lazy import HOME, PREFIX, Named, rowid_table, table

__all__ = ["HOME", "KNOWN", "PREFIX", "REVISION", "Tables"]

KNOWN = ("0001", "0002", "0003", "0004", "0005", "0006", "0007", "0008", "0009", "0010", "0011", "0012")
"""Every Alembic revision that this release can upgrade from, oldest first."""
REVISION = KNOWN[-1]
"""The revision that these tables are at."""

# SQLite numbers rows only in a column that is exactly INTEGER; everything else is 64 bits on both engines.
_BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
# Ids compare bytewise on both engines, whatever the database's locale.
_ID = sa.Text().with_variant(sa.Text(collation="C"), "postgresql")


_HIDDEN = sa.text("hidden IS NOT NULL")
_FREQUENT = ("append", "event", "state", "revise")
_OPEN_REQUEST = sa.text("until IS NULL AND slot >= '~asked:' AND slot < '~asked;'")


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


def _known_kinds(postgres: bool) -> str:
    """Return the condition that a kind is one of the known ones."""
    if postgres:
        return f"kind IN ({', '.join(repr(kind) for kind in KINDS)})"
    # For a list SQLite makes a table of all kinds, anew for every row: that took as long as the rest of the insert.
    return " OR ".join(f"kind = {kind!r}" for kind in dict.fromkeys((*_FREQUENT, *KINDS)))


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


class Tables(Named):
    """The tables of one store, in the given PostgreSQL schema if there is one, with names that begin as it says."""

    def __init__(self, dialect: str, schema: str | None = None, prefix: str = PREFIX, home: str = HOME) -> None:
        super().__init__(schema, prefix, home)
        self.postgres = dialect == "postgresql"

    @property
    def words(self) -> str:
        """The name of the table that has the words of the search index on SQLite; see ``tape.db.sql.searches``."""
        return self.named("tape_words")

    @property
    def metadata(self) -> sa.MetaData:
        """All tables."""
        for name, declared in vars(Tables).items():
            if isinstance(declared, table):
                getattr(self, name)
        return self.made

    @property
    def view(self) -> tuple[sa.Table, ...]:
        """Every table that ``rebuild`` empties and fills again."""
        return (
            self.live,
            self.past,
            self.lanes,
            self.aliases,
            self.calls,
            self.answers,
            self.anchors,
            self.events,
            self.clears,
            self.slots,
            self.forks,
            self.overrides,
            self.compactions,
            self.labels,
        )

    @rowid_table
    def version(self) -> list[SchemaItem]:
        """The version of the schema, as Alembic makes it: a new database and an upgraded one have the same catalog."""
        return [
            sa.Column("version_num", sa.String(32), nullable=False),
            sa.PrimaryKeyConstraint("version_num", name="tape_version_pkc"),
        ]

    @rowid_table
    def tapes(self) -> list[SchemaItem]:
        """What rarely changes of a tape."""
        return [
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
            # Why the tape is hidden, NULL when it is not.
            sa.Column("hidden", sa.Text),
            # Listings go by the number, in which no append changes anything.
            sa.Index("tape_tapes_owner", "owner", "id"),
            sa.Index("tape_tapes_agent", "agent", "id"),
            sa.Index("tape_tapes_status", "status", "id"),
            # Said for this engine only: the other's dialect takes as long to import as opening the store.
            sa.Index("tape_tapes_hidden", "id", postgresql_where=_HIDDEN)
            if self.postgres
            else sa.Index("tape_tapes_hidden", "id", sqlite_where=_HIDDEN),
        ]

    @rowid_table
    def heads(self) -> list[SchemaItem]:
        """What every append changes of a tape."""
        return [
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
            _number("view", server_default=sa.text("0")),
        ]

    @rowid_table
    def entries(self) -> list[SchemaItem]:
        """What is recorded."""
        postgres = self.postgres
        return [
            # SQLite clusters the table by this number, which makes it the cheapest key there is and the order of the
            # feed. PostgreSQL needs no index on it, and a distributed table could not have one without the tape.
            sa.Column("position", _BIG, sa.Identity(always=True), primary_key=not postgres, nullable=False),
            _number("tape_id"),
            _number("seq"),
            *_recorded(),
            _number("xid"),
            (sa.PrimaryKeyConstraint if postgres else sa.UniqueConstraint)("tape_id", "seq", name="tape_entries_seq"),
            # Not the tape first: so it also tells on which tapes a message is. And a plan that PostgreSQL makes while
            # tapes are short, and then keeps, could take either index to find an entry by its seq; with the tape first
            # it would read the whole tape for each.
            sa.UniqueConstraint("key", "tape_id", name="tape_entries_key"),
            sa.CheckConstraint(_known_kinds(postgres), name="tape_entries_kind"),
            # The order of the feed. SQLite has it in the rowid.
            *([sa.Index("tape_entries_feed", "xid", "position")] if postgres else []),
        ]

    @table
    def live(self) -> list[SchemaItem]:
        """The bodies that hold, at their places."""
        return [
            _number("tape_id", primary_key=True),
            _number("lane", primary_key=True),
            _number("ordinal", primary_key=True),
            _number("placed"),
            _number("since"),
            _number("body"),
        ]

    @table
    def past(self) -> list[SchemaItem]:
        """The bodies that held, until when, and why they ended."""
        return [
            _number("tape_id", primary_key=True),
            _number("lane", primary_key=True),
            _number("ordinal", primary_key=True),
            _number("since", primary_key=True),
            _number("placed"),
            _number("body"),
            _number("until"),
            sa.Column("why", sa.Text, nullable=False),
        ]

    @table
    def lanes(self) -> list[SchemaItem]:
        """Where each lane branches off."""
        return [
            _number("tape_id", primary_key=True),
            _number("lane", primary_key=True),
            _number("base_tape"),
            _number("base_lane"),
            _number("base_ordinal"),
            # Not the tape first: most tapes have one lane, so PostgreSQL would take this index as gladly as the key to
            # look up a lane, and then read every lane of a tape that has thousands.
            sa.Index("tape_lanes_base", "base_lane", "tape_id", "base_ordinal"),
        ]

    @table
    def aliases(self) -> list[SchemaItem]:
        """Other ids of messages."""
        return [
            _number("tape_id", primary_key=True),
            sa.Column("id", _ID, primary_key=True),
            _number("seq"),
            sa.Index("tape_aliases_id", "id", "tape_id"),
        ]

    @table
    def calls(self) -> list[SchemaItem]:
        """The tool calls that messages make."""
        return [
            _number("tape_id", primary_key=True),
            sa.Column("call", _ID, primary_key=True),
            _number("seq", primary_key=True),
            _number("lane"),
            _number("ordinal"),
            _number("place_tape", server_default="0"),
        ]

    @table
    def answers(self) -> list[SchemaItem]:
        """The results of tool calls, each with the message that made the call."""
        return [
            _number("tape_id", primary_key=True),
            _number("maker_tape", primary_key=True),
            _number("maker_lane", primary_key=True),
            _number("maker_ordinal", primary_key=True),
            _number("lane", primary_key=True),
            _number("ordinal", primary_key=True),
            sa.Column("call", _ID, primary_key=True),
        ]

    @table
    def anchors(self) -> list[SchemaItem]:
        """Anchors and handoffs."""
        return [
            _number("tape_id", primary_key=True),
            _number("seq", primary_key=True),
            sa.Column("name", _ID, nullable=False),
            _number("head_tape"),
            _number("lane"),
            _number("ordinal"),
            sa.Index("tape_anchors_place", "tape_id", "head_tape", "lane", "ordinal", "seq"),
            sa.Index("tape_anchors_name", "name", "tape_id", "seq"),
        ]

    @table
    def events(self) -> list[SchemaItem]:
        """Events by name."""
        return [
            _number("tape_id", primary_key=True),
            sa.Column("name", _ID, primary_key=True),
            _number("seq", primary_key=True),
        ]

    @table
    def clears(self) -> list[SchemaItem]:
        """Clears, each with what it hides."""
        return [
            _number("tape_id", primary_key=True),
            _number("seq", primary_key=True),
            _number("head_tape"),
            _number("lane"),
            _number("ordinal"),
            _number("hidden"),
            _number("touched"),
            _number("until", null=True),
        ]

    @table
    def slots(self) -> list[SchemaItem]:
        """State, blocks and the prompt, and since when each holds."""
        return [
            _number("tape_id", primary_key=True),
            sa.Column("slot", _ID, primary_key=True),
            _number("since", primary_key=True),
            _number("until", null=True),
            sa.Index("tape_slots_asked", "slot", "tape_id", postgresql_where=_OPEN_REQUEST)
            if self.postgres
            else sa.Index("tape_slots_asked", "slot", "tape_id", sqlite_where=_OPEN_REQUEST),
        ]

    @table
    def compactions(self) -> list[SchemaItem]:
        """Summaries, and what became of what they cover."""
        return [
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
        ]

    @table
    def forks(self) -> list[SchemaItem]:
        """Where each fork was forked off, and what became of it."""
        return [
            _number("tape_id", primary_key=True),
            _number("parent_id"),
            _number("seq"),
            sa.Column("lineage", sa.LargeBinary, nullable=False),
            sa.Column("state", sa.Text, nullable=False),
            _number("merged"),
            _number("merge_seq"),
            sa.Index("tape_forks_parent", "parent_id"),
        ]

    @table
    def overrides(self) -> list[SchemaItem]:
        """What forks made of inherited messages."""
        return [
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
        ]

    @table
    def labels(self) -> list[SchemaItem]:
        """The labels of tapes."""
        return [
            _number("tape_id", primary_key=True),
            sa.Column("label", _ID, primary_key=True),
            sa.Index("tape_labels_label", "label", "tape_id"),
        ]

    @table
    def tombstones(self) -> list[SchemaItem]:
        """What is left of a purged tape, beside its rows in tapes and heads and its last entry."""
        return [
            _number("tape_id", primary_key=True),
            sa.Column("tape", _ID, nullable=False),
            sa.Column("owner", _ID),
            _number("seq"),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            _number("stamp"),
            _number("emptied"),
            sa.Index("tape_tombstones_tape", "tape"),
        ]

    @table
    def checks(self) -> list[SchemaItem]:
        """Up to where a tape was last found intact."""
        return [
            _number("tape_id", primary_key=True),
            _number("seq"),
            sa.Column("hash", sa.LargeBinary, nullable=False),
            _number("stamp"),
            sa.Index("tape_checks_stamp", "stamp"),
        ]

    @table
    def imports(self) -> list[SchemaItem]:
        """Up to where a tape came from another store: what it cites of tapes that stayed there is not missing."""
        return [
            _number("tape_id", primary_key=True),
            _number("seq"),
        ]

    @table
    def arrivals(self) -> list[SchemaItem]:
        """The entries of an import that is under way, in the columns of the entries that they will be."""
        return [
            _number("tape_id", primary_key=True),
            _number("seq", primary_key=True),
            *_recorded(),
        ]

    @rowid_table
    def epoch(self) -> list[SchemaItem]:
        """What is added to every transaction id, so that they go on rising in a database that was restored."""
        return [
            # There is one row; the key is for Citus, which cannot move a table without one while it is written to.
            _number("base", primary_key=self.postgres),
        ]

    @rowid_table
    def texts(self) -> list[SchemaItem]:
        """The bodies that are indexed, each with its message's place, and the beginning of those that are long.

        On SQLite the words are in a table beside it.
        """
        postgres = self.postgres
        return [
            _number("position", primary_key=not postgres),
            _number("tape_id", primary_key=postgres),
            _number("seq", primary_key=postgres),
            _number("origin"),
            _number("lane"),
            _number("ordinal"),
            *(_words() if postgres else [sa.Index("tape_texts_tape", "tape_id", "seq")]),
            sa.Column("excerpt", sa.LargeBinary),
        ]

    @table
    def consumers(self) -> list[SchemaItem]:
        """How far each reader of the feed has come; the search index is one of them."""
        return [
            sa.Column("owner", _ID, primary_key=True),
            sa.Column("name", _ID, primary_key=True),
            _number("xid"),
            _number("position"),
            _number("version"),
        ]
