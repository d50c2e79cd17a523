"""Seeded changes of the agent in examples/recorded_agent.py, each with the divergence that it should be named as."""

from __future__ import annotations

import dataclasses
import random
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

__all__ = ["CHANGES", "changed", "example"]


def example() -> ModuleType:
    """Return the example as a module."""
    import importlib.util

    name = "recorded_agent_example"
    if name not in sys.modules:
        file = Path(__file__).resolve().parents[2] / "examples" / "recorded_agent.py"
        spec = importlib.util.spec_from_file_location(name, file)
        assert spec is not None
        assert spec.loader is not None
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    return sys.modules[name]


Expected = tuple[str, str, str | None, Any]
"""The kind, the name of the call, the JSON pointer to the first value that differs, and a recorded argument or None."""


def _prompt(setup: Any, chance: random.Random) -> tuple[Any, Expected]:
    prompt = setup.prompt + chance.choice([" Be brief.", "\n", " Vær så god.", " 🛳", f" {chance.random()}"])
    return dataclasses.replace(setup, prompt=prompt), ("request_changed", "model", "/messages/0/content", None)


def _schema(setup: Any, chance: random.Random) -> tuple[Any, Expected]:
    tools = [dict(tool) for tool in setup.tools]
    which = chance.randrange(len(tools))
    how = chance.choice(["type", "name", "lost", "added"])
    if how == "type":
        tools[which]["parameters"] = {"thing": {"type": "number"}}
        path = f"/tools/{which}/parameters/"
    elif how == "name":
        tools[which]["name"] += "_v2"
        path = f"/tools/{which}/name"
    elif how == "lost":
        del tools[which]
        path = f"/tools/{which}"
    else:
        tools.append({"name": "rail", "parameters": {}})
        path = f"/tools/{len(tools) - 1}"
    return dataclasses.replace(setup, tools=tuple(tools)), ("tool_schema_changed", "model", path, None)


def _order(setup: Any, chance: random.Random) -> tuple[Any, Expected]:
    items = list(setup.items)
    first, second = sorted(chance.sample(range(len(items)), 2))
    items[first], items[second] = items[second], items[first]
    return dataclasses.replace(setup, items=tuple(items)), ("order_changed", "price", None, setup.items[first])


def _arguments(setup: Any, chance: random.Random) -> tuple[Any, Expected]:
    if chance.random() < 0.3:
        return dataclasses.replace(setup, nights=chance.randrange(3, 99)), ("request_changed", "price", "/nights", 2)
    which = chance.randrange(len(setup.items))
    items = (*setup.items[:which], f"item {chance.random()}", *setup.items[which + 1 :])
    return dataclasses.replace(setup, items=items), ("request_changed", "price", "/item", setup.items[which])


def _city(setup: Any, chance: random.Random) -> tuple[Any, Expected]:
    which = chance.randrange(len(setup.cities))
    cities = (*setup.cities[:which], f"city {chance.random()}", *setup.cities[which + 1 :])
    return dataclasses.replace(setup, cities=cities), ("request_changed", "weather", "/city", setup.cities[which])


def _model(setup: Any, chance: random.Random) -> tuple[Any, Expected]:
    return dataclasses.replace(setup, model=f"made-up-{chance.randrange(2, 99)}"), (
        "model_changed",
        "model",
        "/model",
        "made-up-1",
    )


def _clock(setup: Any, chance: random.Random) -> tuple[Any, Expected]:
    return dataclasses.replace(setup, asks_the_clock=False), ("missing_call", "clock", None, None)


def _lost(setup: Any, chance: random.Random) -> tuple[Any, Expected]:
    if chance.random() < 0.5:
        which = chance.randrange(len(setup.cities))
        cities = setup.cities[:which] + setup.cities[which + 1 :]
        return dataclasses.replace(setup, cities=cities), ("missing_call", "weather", None, setup.cities[which])
    which = chance.randrange(len(setup.items))
    items = setup.items[:which] + setup.items[which + 1 :]
    return dataclasses.replace(setup, items=items), ("missing_call", "price", None, setup.items[which])


CHANGES: list[Callable[[Any, random.Random], tuple[Any, Expected]]] = [
    _prompt,
    _schema,
    _order,
    _arguments,
    _city,
    _model,
    _clock,
    _lost,
]


def changed(seed: int) -> tuple[Any, Expected]:
    """Return the setup of an agent with one change, and the divergence that it is."""
    chance = random.Random(seed)
    return CHANGES[seed % len(CHANGES)](example().Setup(), chance)
