"""A web application whose own rows and whose agent's tape commit or roll back together.

``python examples/app_transaction.py``. The handlers are written as one writes them for FastAPI: ``transaction`` is
what ``Depends`` would be given. The order and the messages about it are in one database, and one commit covers both.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import sqlalchemy as sa

import tape

metadata = sa.MetaData()
orders = sa.Table(
    "orders",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    sa.Column("request", sa.String, unique=True, nullable=False),
    sa.Column("item", sa.String, nullable=False),
)


class SoldOut(Exception):
    """There is none left."""


class App:
    """What such an application sets up once, when it starts."""

    def __init__(self, url: str) -> None:
        self.engine = sa.create_engine(url)
        metadata.create_all(self.engine)
        self.store = tape.open(url)

    @contextmanager
    def transaction(self) -> Iterator[tuple[sa.Connection, tape.Store]]:
        """Give a handler the connection of its request, and the store on that same connection."""
        with self.engine.begin() as connection:
            yield connection, self.store.bind(connection)

    def close(self) -> None:
        """Give everything back."""
        self.store.close()
        self.engine.dispose()


def place_order(connection: sa.Connection, store: tape.Store, user: str, request: str, item: str) -> int:
    """Handle ``POST /orders``: a client that got no reply sends the same request again."""
    chat = store.tape(f"support-{user}")
    said = chat.append(role="user", content=f"I would like a {item}.", key=request, actor=user)
    if said.duplicate:
        found = connection.execute(sa.select(orders.c.id).where(orders.c.request == request)).scalar_one()
        return int(found)
    number = connection.execute(orders.insert().values(request=request, item=item)).inserted_primary_key
    assert number is not None
    chat.append(role="assistant", content=f"Order {number[0]} is placed.", actor="shop", meta={"order": number[0]})
    if item == "unicorn":
        # The order and both messages go: a tape never tells of an order that is not there.
        raise SoldOut(item)
    return int(number[0])


def main() -> None:
    """Serve three requests: one that succeeds, the same again, and one that fails."""
    app = App(f"sqlite:///{Path(tempfile.mkdtemp(prefix='tape-app-')) / 'shop.db'}")
    try:
        for request, item in (("req-1", "lamp"), ("req-1", "lamp"), ("req-2", "unicorn")):
            try:
                with app.transaction() as (connection, store):
                    print(f"{request}: order {place_order(connection, store, 'ann', request, item)}")
            except SoldOut as error:
                print(f"{request}: {error} is sold out")

        with app.engine.connect() as connection:
            rows = connection.execute(sa.select(orders.c.request, orders.c.item)).all()
        print("orders:", [tuple(row) for row in rows])
        print("tape:", [message.content for message in app.store.get("support-ann").messages()])
        print("verified:", app.store.verify().ok)
    finally:
        app.close()


if __name__ == "__main__":
    main()
