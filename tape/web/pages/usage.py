"""Usage: tokens and cost over time and by model, as plots."""

from __future__ import annotations

import itertools
from typing import Any

import tape
from tape.web.draw.plot import bars, lines
from tape.web.page_request import PageRequest
from tape.web.parts import card

__all__ = ["usage"]

_LOOKED = 200_000
"""Entries at the end of a tape that are looked through for usage."""
_POINTS = 400
_MODELS = 12


def usage(request: PageRequest) -> dict[str, Any]:
    """Return the totals of a tape, what each model used, and the plots of both."""
    chat = request.snapshot()
    info, totals = chat.info(), chat.usage()
    # A tape without totals has no call to look for.
    entries = (
        chat.entries(after=max(0, info.head - _LOOKED), kinds=["usage", "merge"]) if totals != tape.Usage() else ()
    )
    calls = [entry for entry in entries if _spent(entry)]
    models = _by_model(calls)
    named = sorted(models.items(), key=lambda item: (-item[1]["cost"], -item[1]["tokens"]))[:_MODELS]
    costs = any(model["cost"] for model in models.values())
    return {
        "title": f"Usage of {info.name or info.id}",
        "tape": card(info),
        "seq": info.head,
        "head": request.chat().info().head,
        "totals": {name: getattr(totals, name) for name in totals.__struct_fields__},
        "models": [{"model": name, **used} for name, used in named],
        "plots": [
            lines("Tokens over time", _running(calls, "tokens")),
            *([lines("Cost over time", _running(calls, "cost"))] if costs else []),
            bars("Tokens by model", [(name, float(used["tokens"])) for name, used in named]),
            *([bars("Cost by model", [(name, used["cost"] / 1e6) for name, used in named])] if costs else []),
        ]
        if calls
        else [],
    }


def _by_model(calls: list[tape.Entry]) -> dict[str, dict[str, int]]:
    models: dict[str, dict[str, int]] = {}
    for entry in calls:
        payload: Any = entry.payload
        name = "merged forks" if entry.kind == "merge" else payload.model or "not named"
        used = models.setdefault(name, dict.fromkeys(_COUNTED, 0))
        spent = _spent(entry)
        for counted, number in zip(_COUNTED, [*spent, spent[0] + spent[1]], strict=True):
            used[counted] += number
    return models


_COUNTED = ("input_tokens", "output_tokens", "cached_tokens", "cost", "calls", "tokens")


def _spent(entry: tape.Entry) -> list[int]:
    """Return what an entry adds to the totals: input, output, cached, cost and calls; nothing if it adds none."""
    payload: Any = entry.payload
    if entry.kind == "merge" or payload is None:
        # What a fork used is counted with the merge, on the parent alone.
        return list(payload.usage) if payload is not None and payload.into else []
    return [payload.input_tokens, payload.output_tokens, payload.cached_tokens, payload.cost, 1]


def _running(calls: list[tape.Entry], measure: str) -> list[tuple[int, float]]:
    """Return the total after each call, or after each so many of very many."""
    used: list[float] = []
    for entry in calls:
        spent_in, spent_out, _, cost, _ = _spent(entry)
        used.append(cost / 1e6 if measure == "cost" else spent_in + spent_out)
    points = [(entry.stamp, total) for entry, total in zip(calls, itertools.accumulate(used), strict=True)]
    step = len(points) // _POINTS + 1
    return [*points[:-1:step], *points[-1:]]
