"""Where things of ADK are kept: the ids and owners of tapes, and the names of slots."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tape
from tape.integrations.naming import digest, quoted, short

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
        # Ids are global: what two owners of stores call the same is not. No quoted name has an @ in it.
        scope = "adk" if store.owner is None else f"adk/@{quoted(store.owner)}"
        of_app = f"{scope}/{quoted(app)}"
        of_user = f"{of_app}/{quoted(user)}"
        self.app, self.user = short(of_app), short(of_user)
        self.session, self.memory = short(f"{of_user}/{quoted(session)}"), short(f"{of_user}//memory")
        self.agent = short(app)
        self.owner = short(user) if store.owner is None else store.owner


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
            chat.put(_ODD_STATE + digest(key), [key, value])
