"""Where things of ADK are kept: the ids and owners of tapes, and the names of slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tape
from tape.integrations.histories import tape_id

__all__ = ["APP", "TEMP", "USER", "Place", "put_states", "states_of"]

APP, USER, TEMP = "app:", "user:", "temp:"
"""How the keys of state begin that are not the session's alone."""
_STATE = "adk:"
_ODD_STATE = "adk~"
"""A slot whose key cannot be a name: its value is the key and the value."""
_LONGEST_SLOT = 240


class Place:
    """The tapes of an app, of one of its users, of a session, and of what is remembered of the user."""

    def __init__(self, store: tape.Store, app: str, user: str = "", session: str = "") -> None:
        self.app, self.user = tape_id(store, "adk", app), tape_id(store, "adk", app, user)
        self.session = tape_id(store, "adk", app, user, session)
        self.memory = tape_id(store, "adk", app, user, "", "memory")
        self.agent = tape.as_id(app)
        self.owner = tape.as_id(user) if store.owner is None else store.owner


def states_of(chat: tape.Snapshot) -> dict[str, Any]:
    """Return the state that ADK has put on a tape."""
    slots = chat.states(prefix="adk")
    state = {slot[len(_STATE) :]: value for slot, value in slots.items() if slot.startswith(_STATE)}
    return state | {value[0]: value[1] for slot, value in slots.items() if slot.startswith(_ODD_STATE)}


def put_states(chat: tape.Tape, state: Mapping[str, Any]) -> None:
    """Put state on a tape, a slot for each key: None is a value there."""
    for key, value in state.items():
        slot = _STATE + key
        if slot.isprintable() and len(slot) <= _LONGEST_SLOT:
            chat.put(slot, value)
        else:
            chat.put(tape.as_id(_ODD_STATE + key, most=_LONGEST_SLOT), [key, value])
