"""A policy that lets something happen while a context is built."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from tape.core.context.policy import Item, Shaped, Standard
from tape.core.records import Message

__all__ = ["Meddling"]


class Meddling(msgspec.Struct):
    """The standard policy, which lets something happen while a context is built."""

    meddle: Callable[[], Any]
    times: int = 1
    name: str = "meddling"
    version: int = 1

    def shape(self, items: list[Item], budget: int | None, cost: Callable[[Message], int]) -> Shaped:
        """Do it, as often as is wanted."""
        if self.times > 0:
            self.times -= 1
            self.meddle()
        return Standard().shape(items, budget, cost)
