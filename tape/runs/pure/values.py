"""Values: what calls return, yield and raise, as JSON, and the way back. Pure.

JSON values and bytes come back as they were. Of other objects their data is kept, and the name of their type. What
comes back is what ``load`` makes of the data, or the type that the function's annotation names, or the recorded type if
the program has loaded it, or else the data itself.
"""

from __future__ import annotations

import base64
import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from tape.core import strict
from tape.core.lenient import lenient
from tape.errors import InvalidEntry, RecordedError
from tape.runs.pure.fields import without_addresses
from tape.runs.pure.requests import Redact

__all__ = ["Load", "error_of", "loader_of", "restored", "restored_error", "stored", "stored_error"]

Load = Callable[[Any], Any]

_PLAIN = (str, int, float, bool, dict, list, type(None))


def stored(value: Any, redact: Redact | None) -> dict[str, Any]:
    """Return a value as it is stored: its data, its type where that is no JSON, and what was lost, if anything."""
    if isinstance(value, bytes | bytearray) and redact is None:
        return {"bytes": base64.b64encode(bytes(value)).decode()}
    replaced: list[str] = []
    try:
        raw = strict.encode(value, "value")
        if raw.count(b"[") + raw.count(b"{") > strict.MAX_DEPTH // 2:
            # Some levels are left for what it is put into.
            strict.shallow(value, "value", more=-8)
        data = value
    except InvalidEntry:
        data, replaced = lenient(value)
        data = without_addresses(data) if isinstance(data, str) else data
    if redact is not None:
        try:
            data = lenient(redact(data))[0]
        except Exception as error:
            # The call was made. That it was, is recorded all the same; its value is not, since it may be a secret.
            return {"withheld": f"redact raised {type(error).__name__}"}
    kept: dict[str, Any] = {"is": data}
    if type(value) not in _PLAIN:
        kept["type"] = f"{type(value).__module__}:{type(value).__qualname__}"
    if lost := [what for what in replaced if not what.startswith("value is a ")]:
        kept["replaced"] = lost[:20]
    return kept


def restored(kept: Mapping[str, Any], load: Load | None) -> Any:
    """Return a stored value as the program expects it. Raises InvalidEntry when ``load`` cannot make it."""
    if "withheld" in kept:
        raise InvalidEntry("value", f"was not recorded: {kept['withheld']}")
    if "bytes" in kept:
        data: Any = base64.b64decode(kept["bytes"])
        return data if load is None else _loaded(load, data)
    data = strict.copied(kept["is"])
    if load is not None:
        return _loaded(load, data)
    name = kept.get("type")
    if name is None:
        return data
    if name == "builtins:tuple":
        return tuple(data)
    if name in ("builtins:set", "builtins:frozenset"):
        return set(data) if name == "builtins:set" else frozenset(data)
    cls = _loaded_type(name)
    maker = None if cls is None else _maker(cls)
    return data if maker is None else _loaded(maker, data)


def _loaded(load: Load, data: Any) -> Any:
    try:
        return load(data)
    except Exception as error:
        raise InvalidEntry("load", f"cannot make the value of its recorded data: {error}") from error


def _loaded_type(name: str) -> Any:
    """Return the type of this name if the program has it loaded already: nothing is imported for a recording."""
    module, _, path = name.partition(":")
    found: Any = sys.modules.get(module)
    for part in path.split("."):
        found = getattr(found, part, None)
    return found if isinstance(found, type) else None


def _maker(kind: Any) -> Load | None:
    """Return how a value of a type is made of its data; None for types of which that is not known."""
    validate = getattr(kind, "model_validate", None)
    if isinstance(kind, type) and callable(validate):
        return typing.cast("Load", validate)
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        return lambda data: msgspec.convert(data, kind, strict=False)
    return None


def loader_of(fn: Any, load: Load | None) -> Load | None:
    """Return how the results of a function are made of recorded data: by ``load``, or as its annotation says."""
    if load is not None:
        strict.callback(load, "load")
        return _maker(load) or load
    try:
        wanted = typing.get_type_hints(inspect.unwrap(fn)).get("return")
    except Exception:
        # Annotations that name what is not there are no reason to fail.
        return None
    if (maker := _maker(wanted)) is not None:
        return maker
    arguments = typing.get_args(wanted)
    if typing.get_origin(wanted) is list and len(arguments) == 1 and (maker := _maker(arguments[0])) is not None:
        return lambda data: [maker(item) for item in data]
    return None


def stored_error(error: BaseException, redact: Redact | None) -> dict[str, Any]:
    """Return an error as it is stored: its type, its text and its arguments."""
    arguments, replaced = lenient(list(error.args))
    kept = {
        "type": f"{type(error).__module__}:{type(error).__qualname__}",
        "text": lenient(str(error))[0],
        "args": arguments,
    }
    if replaced:
        kept["replaced"] = replaced[:20]
    if redact is not None:
        try:
            cleaned = redact({"text": kept["text"], "args": kept["args"]})
            kept["text"], kept["args"] = lenient(cleaned["text"])[0], lenient(cleaned["args"])[0]
        except Exception:
            kept["text"], kept["args"] = "[withheld]", []
    return kept


def restored_error(kept: Mapping[str, Any]) -> BaseException:
    """Return the error to raise again: of its type where that can be made of its arguments, else RecordedError."""
    cls = _loaded_type(kept["type"])
    if cls is not None and issubclass(cls, BaseException) and not kept.get("replaced"):
        try:
            error = cls(*kept["args"])
        except Exception:
            return RecordedError(kept["type"], kept["text"])
        if str(error) == kept["text"]:
            return typing.cast("BaseException", error)
    return RecordedError(kept["type"], kept["text"])


def error_of(kept: Mapping[str, Any]) -> str:
    """Return an error in one line."""
    return f"{kept['type'].rpartition(':')[2]}: {kept['text']}"
