"""Rules of the state machine for ids and metas beside messages, for what happened when, and for no head at all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import rule

import tape
from support import random_messages as random
from support.model import Item, Model

__all__ = ["IdRules", "heads", "ids", "keys", "metas", "picks", "tapes"]

# Most steps go to one tape, most without an id or a key of the caller's: otherwise every second write would be refused
# or a duplicate, and no history would grow long enough to be interesting.
tapes = st.sampled_from([0, 0, 0, 0, 0, 1, 2])
ids = st.sampled_from([None] * 8 + [*"abcdef"])
keys = st.sampled_from([None] * 12 + ["k1", "k2", "k3", "k4"])
heads = st.sampled_from(["any"] * 18 + ["right", "wrong"])
picks = st.integers(0, 30)
"""A message of the tape by its number; 0 for one that is not there."""
metas = st.sampled_from([None, {"run": 1}])
_moments = st.sampled_from([None, None, 0, -5, 1_700_000_000_000_000])
_own_ids = st.sampled_from([{}] * 6 + [{"id": "msg_1"}, {"id": "a"}, {"id": None}, {"id": 7}])
"""What a message has as an id of its own: data, if there is one beside it."""


class IdRules:
    """What the machine does with the options that messages take."""

    models: list[Model]
    handle: Callable[[int], tape.Tape]
    pick: Callable[[int, int], str]
    expected: Callable[[int, str], int | None]
    write: Callable[..., None]

    @rule(index=tapes, message=random.messages, own=_own_ids, id=ids, key=keys, meta=metas, moment=_moments)
    def append_with_its_own_id(
        self,
        index: int,
        message: dict[str, Any],
        own: dict[str, Any],
        id: str | None,
        key: str | None,
        meta: dict[str, Any] | None,
        moment: int | None,
    ) -> None:
        given = {**own, **message}
        self.write(
            index,
            lambda: self.handle(index).append(given, id=id, key=key, meta=meta, occurred_at=moment),
            lambda model, made: model.extend([Item(given, id, key, made=made[0], said=(meta, moment))]),
        )

    @rule(
        index=tapes,
        batch=st.lists(st.tuples(random.said, _own_ids, ids, metas), min_size=1, max_size=4),
        meta=st.sampled_from([None, None, {"all": True, "run": 2}]),
        moment=_moments,
    )
    def extend_with_ids_and_metas(
        self,
        index: int,
        batch: list[tuple[dict[str, Any], dict[str, Any], str | None, dict[str, Any] | None]],
        meta: dict[str, Any] | None,
        moment: int | None,
    ) -> None:
        given = [{**message, **own} for message, own, _, _ in batch]
        beside, metas = [one[2] for one in batch], [one[3] for one in batch]

        def said(own: dict[str, Any] | None) -> tuple[Any, int | None]:
            return (None if own is None and meta is None else {**(meta or {}), **(own or {})}), moment

        self.write(
            index,
            lambda: self.handle(index).extend(given, ids=beside, metas=metas, meta=meta, occurred_at=moment),
            lambda model, made: model.extend(
                [
                    Item(message, id, made=new, said=said(own))
                    for message, id, own, new in zip(given, beside, metas, made, strict=False)
                ]
            ),
        )

    @rule(
        index=tapes, number=picks, message=random.said, own=_own_ids, meta=metas, moment=_moments, whole=st.booleans()
    )
    def upsert_with_its_own_id(
        self,
        index: int,
        number: int,
        message: dict[str, Any],
        own: dict[str, Any],
        meta: dict[str, Any] | None,
        moment: int | None,
        whole: bool,
    ) -> None:
        """An id beside the message aims at one that exists, or at none."""
        id = self.pick(index, number)
        note = self.models[index].notes.get(id)
        given = {name: value for name, value in {**message, **own}.items() if name != "role" or note is None}
        given |= {} if note is None or "role" not in note.body else {"role": note.body["role"]}
        if whole and note is not None:
            self.write(
                index,
                lambda: self.handle(index).revise(id, given, meta=meta, occurred_at=moment),
                lambda model, made: model.revise(id, message=given, said=(meta, moment)),
            )
        else:
            self.write(
                index,
                lambda: self.handle(index).upsert(given, id=id, meta=meta, occurred_at=moment),
                lambda model, made: model.upsert(Item(given, id, made=made[0], said=(meta, moment))),
            )

    @rule(index=tapes, key=keys, head=heads)
    def switch_to_none(self, index: int, key: str | None, head: str) -> None:
        expected = self.expected(index, head)
        self.write(
            index,
            lambda: self.handle(index).switch(None, key=key, expected_head=expected),
            lambda model, made: model.switch(None, key=key, expected=expected),
        )
        assert len(self.handle(index).messages(limit=0)) == 0
