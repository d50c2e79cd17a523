"""Values of OTLP's JSON: attributes as a dict, and flattened names as lists and objects. Pure."""

from __future__ import annotations

from typing import Any

from tape.core import json_text

__all__ = ["attributes", "loaded", "unflattened", "value_of"]

_SCALARS = ("stringValue", "boolValue", "doubleValue", "bytesValue")


def attributes(encoded: Any) -> dict[str, Any]:
    """Return attributes as a dict; OTLP writes them as a list of keys and values, other programs as an object."""
    if isinstance(encoded, dict):
        return encoded
    pairs = encoded if isinstance(encoded, list) else []
    return {
        pair["key"]: value_of(pair.get("value"))
        for pair in pairs
        if isinstance(pair, dict) and isinstance(pair.get("key"), str)
    }


def value_of(value: Any) -> Any:
    """Return what an ``AnyValue`` holds."""
    if not isinstance(value, dict):
        return value
    for name in _SCALARS:
        if name in value:
            return value[name]
    if "intValue" in value:
        number = value["intValue"]
        return int(number) if isinstance(number, str) and number.lstrip("-").isdigit() else number
    for name in ("arrayValue", "kvlistValue"):
        inner = value.get(name)
        if isinstance(inner, dict):
            values = inner.get("values")
            items = values if isinstance(values, list) else []
            return [value_of(item) for item in items] if name == "arrayValue" else attributes(items)
    return value if value else None


def loaded(value: Any) -> Any:
    """Return a value that may be JSON in a text as that JSON, and any other as it is."""
    if isinstance(value, str) and value[:1] in "[{":
        return json_text.value_of(value)
    return value


def unflattened(flat: dict[str, Any], prefix: str) -> list[Any]:
    """Return the list whose members are flattened as ``prefix.0.name`` and so on: numbers are indexes in lists."""
    root: dict[str, Any] = {}
    for name, value in flat.items():
        if not name.startswith(f"{prefix}."):
            continue
        place = root
        *path, last = name[len(prefix) + 1 :].split(".")
        for step in path:
            inner = place.setdefault(step, {})
            if not isinstance(inner, dict):
                break
            place = inner
        else:
            place[last] = value
    return _lists(root) if root and all(key.isdigit() for key in root) else []


def _lists(value: Any) -> Any:
    if not isinstance(value, dict):
        return value
    if value and all(key.isdigit() for key in value):
        return [_lists(value[key]) for key in sorted(value, key=int)]
    return {key: _lists(item) for key, item in value.items()}
