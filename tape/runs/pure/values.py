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
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec

from tape.core import strict, typed
from tape.core.lenient import lenient
from tape.core.redact import Redactor
from tape.errors import InvalidEntry, RecordedError
from tape.runs.pure.fields import without_addresses

__all__ = [
    "Load",
    "error_of",
    "loader_of",
    "redacted",
    "redacted_error",
    "restored",
    "restored_error",
    "stored",
    "stored_chunks",
    "stored_error",
]

Load = Callable[[Any], Any]

_PLAIN = (str, int, float, bool, dict, list, type(None))


def stored(value: Any, redact: Redactor | None) -> dict[str, Any]:
    """Return a value as it is stored: its data, its type where that is no JSON, and what was lost, if anything."""
    return stored_chunks([value], redact)[0]


def stored_chunks(values: Sequence[Any], redact: Redactor | None) -> list[dict[str, Any]]:
    """Return the chunks of a stream as they are stored: a secret may be spread over several of them."""
    return redacted([_record_of(value) for value in values], redact)


def redacted(records: Sequence[dict[str, Any]], redact: Redactor | None) -> list[dict[str, Any]]:
    """Return stored values without secrets."""
    if redact is None:
        return list(records)
    try:
        data = [base64.b64decode(record["bytes"]) if "bytes" in record else record.get("is") for record in records]
        return [
            record if "withheld" in record else _without_secrets(record, cleaned, redact)
            for record, cleaned in zip(records, redact.stream(data), strict=True)
        ]
    except Exception as error:
        # The call was made. That it was, is recorded all the same; its value is not, since it may be a secret.
        return [{"withheld": f"redact raised {type(error).__name__}"} for _ in records]


def _without_secrets(record: dict[str, Any], cleaned: Any, redact: Redactor) -> dict[str, Any]:
    if isinstance(cleaned, bytes):
        return {"bytes": base64.b64encode(cleaned).decode()}
    made = {**record, "is": lenient(cleaned)[0]}
    made.pop("bytes", None)
    if "replaced" in record:
        # Paths are made of names of fields.
        made["replaced"] = [redact.text(note) for note in record["replaced"]]
    return made


def _record_of(value: Any) -> dict[str, Any]:
    if isinstance(value, bytes | bytearray):
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
    record: dict[str, Any] = {"is": data}
    if type(value) not in _PLAIN:
        record["type"] = f"{type(value).__module__}:{type(value).__qualname__}"
    if lost := [note for note in replaced if not note.startswith("value is a ")]:
        record["replaced"] = lost[:20]
    return record


def restored(record: Mapping[str, Any], load: Load | None) -> Any:
    """Return a stored value as the program expects it. Raises InvalidEntry when ``load`` cannot make it."""
    if "withheld" in record:
        raise InvalidEntry("value", f"was not recorded: {record['withheld']}")
    if "bytes" in record:
        data: Any = base64.b64decode(record["bytes"])
        return data if load is None else _loaded(load, data)
    data = strict.copied(record["is"])
    if load is not None:
        return _loaded(load, data)
    name = record.get("type")
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
        raise InvalidEntry("load", f"cannot rebuild the value from its recorded data: {error}") from error


def _loaded_type(name: str) -> Any:
    """Return the type of this name if the program has it loaded already: nothing is imported for a recording."""
    module, _, path = name.partition(":")
    value: Any = sys.modules.get(module)
    for part in path.split("."):
        value = getattr(value, part, None)
    return value if isinstance(value, type) else None


def _maker(kind: Any) -> Load | None:
    """Return how a value of a type is made of its data; None for types of which that is not known."""
    validate = getattr(kind, "model_validate", None)
    if isinstance(kind, type) and callable(validate):
        return typing.cast("Load", validate)
    if isinstance(kind, type) and (issubclass(kind, msgspec.Struct) or dataclasses.is_dataclass(kind)):
        return lambda data: typed.convert(data, kind, strict=False)
    return None


def loader_of(fn: Any, load: Load | None) -> Load | None:
    """Return how the results of a function are made of recorded data: by ``load``, or as its annotation says."""
    if load is not None:
        strict.callback(load, "load")
        return _maker(load) or load
    try:
        annotation = typing.get_type_hints(inspect.unwrap(fn)).get("return")
    except Exception:
        # Annotations that name what is not there are no reason to fail.
        return None
    if (maker := _maker(annotation)) is not None:
        return maker
    arguments = typing.get_args(annotation)
    if typing.get_origin(annotation) is list and len(arguments) == 1 and (maker := _maker(arguments[0])) is not None:
        return lambda data: [maker(item) for item in data]
    return None


def stored_error(error: BaseException, redact: Redactor | None) -> dict[str, Any]:
    """Return an error as it is stored: its type, its text and its arguments."""
    arguments, replaced = lenient(list(error.args))
    record = {
        "type": f"{type(error).__module__}:{type(error).__qualname__}",
        "text": lenient(str(error))[0],
        "args": arguments,
    }
    if replaced:
        record["replaced"] = replaced[:20]
    return record if redact is None else redacted_error(record, redact)


def redacted_error(record: dict[str, Any], redact: Redactor) -> dict[str, Any]:
    """Return a stored error without secrets."""
    try:
        arguments = redact(record["args"])
        made = {
            "text": str(redact(record["text"])),
            "args": lenient(arguments)[0] if isinstance(arguments, list) else [],
        }
        if "replaced" in record:
            made["replaced"] = [redact.text(note) for note in record["replaced"]]
    except Exception:
        made = {"text": "[withheld]", "args": []}
    return {**record, **made}


def restored_error(record: Mapping[str, Any]) -> BaseException:
    """Return the error to raise again: of its type where that can be made of its arguments, else RecordedError."""
    cls = _loaded_type(record["type"])
    if cls is not None and issubclass(cls, BaseException) and not record.get("replaced"):
        try:
            error = cls(*record["args"])
        except Exception:
            return RecordedError(record["type"], record["text"])
        if str(error) == record["text"]:
            return typing.cast("BaseException", error)
    return RecordedError(record["type"], record["text"])


def error_of(record: Mapping[str, Any]) -> str:
    """Return an error in one line."""
    return f"{record['type'].rpartition(':')[2]}: {record['text']}"
