"""Values: what calls return, yield and raise, as JSON, and the way back. Pure.

JSON values and bytes come back as they were. Of other objects their data is kept, and the name of their type. What
comes back is what ``load`` makes of the data, or the type that the function's annotation names, or the recorded type if
the program has loaded it, or else the data itself.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
import typing
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

import msgspec
from msgspec import UNSET, Struct, field, structs

from tape.core import strict, typed
from tape.core.lenient import lenient
from tape.core.redact import REDACTED, Redactor
from tape.errors import InvalidEntry, RecordedError
from tape.runs.pure.fields import without_addresses

__all__ = [
    "Load",
    "StoredError",
    "StoredValue",
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
_COLLECTIONS: dict[str, Load] = {f"builtins:{kind.__name__}": kind for kind in (tuple, set, frozenset)}


class StoredValue(Struct, omit_defaults=True, kw_only=True):
    """A value as it is stored: its data or bytes, or why it was withheld."""

    data: Any = field(name="is", default=UNSET)
    raw: bytes | None = field(name="bytes", default=None)
    withheld: str | None = None
    type: str | None = None
    """The module and the name of its type, where that is not of JSON."""
    replaced: list[str] = field(default_factory=list)
    """What was lost."""

    def __post_init__(self) -> None:
        if (self.data is not UNSET) + (self.raw is not None) + (self.withheld is not None) != 1:
            raise ValueError("it needs exactly one of 'is', 'bytes' and 'withheld'")


class StoredError(Struct, omit_defaults=True, kw_only=True):
    """An error as it is stored: its type, its text and its arguments."""

    type: str
    text: str
    args: list[Any]
    replaced: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.type.rpartition(':')[2]}: {self.text}"


def stored(value: Any, redact: Redactor | None) -> StoredValue:
    """Return a value as it is stored."""
    return stored_chunks([value], redact)[0]


def stored_chunks(values: Sequence[Any], redact: Redactor | None) -> list[StoredValue]:
    """Return the chunks of a stream as they are stored: a secret may be spread over several of them."""
    return redacted([_stored_whole(value) for value in values], redact)


def redacted(values: Sequence[StoredValue], redact: Redactor | None) -> list[StoredValue]:
    """Return stored values without secrets."""
    if redact is None:
        return list(values)
    try:
        data = [value.raw if value.raw is not None else value.data for value in values]
        cleaned = redact.stream([None if one is UNSET else one for one in data])
        return [
            value if value.withheld is not None else _without_secrets(value, one, redact)
            for value, one in zip(values, cleaned, strict=True)
        ]
    except Exception as error:
        # The call was made. That it was, is recorded all the same; its value is not, since it may be a secret.
        return [StoredValue(withheld=f"redact raised {type(error).__name__}") for _ in values]


def _without_secrets(value: StoredValue, cleaned: Any, redact: Redactor) -> StoredValue:
    if isinstance(cleaned, bytes):
        return StoredValue(raw=cleaned)
    return StoredValue(data=lenient(cleaned)[0], type=value.type, replaced=_notes(value.replaced, redact))


def _notes(notes: Sequence[str], redact: Redactor) -> list[str]:
    """Return notes without secrets: the paths in them are made of names of fields."""
    cleaned: list[str] = []
    for note in notes:
        try:
            shown = redact(note)
        except Exception:
            shown = None
        cleaned.append(shown if isinstance(shown, str) else REDACTED)
    return cleaned


def _stored_whole(value: Any) -> StoredValue:
    if isinstance(value, bytes | bytearray):
        return StoredValue(raw=bytes(value))
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
    return StoredValue(
        data=data,
        type=None if type(value) in _PLAIN else f"{type(value).__module__}:{type(value).__qualname__}",
        replaced=[note for note in replaced if not note.startswith("value is a ")][:20],
    )


def restored(value: StoredValue, load: Load | None) -> Any:
    """Return a stored value as the program expects it. Raises InvalidEntry when ``load`` cannot make it."""
    if value.withheld is not None:
        raise InvalidEntry("value", f"was not recorded: {value.withheld}")
    if value.raw is not None:
        return value.raw if load is None else _loaded(load, value.raw)
    data = strict.copied(value.data)
    if load is None and value.type is not None:
        load = _COLLECTIONS.get(value.type) or _maker(_loaded_type(value.type))
    return data if load is None else _loaded(load, data)


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
        # No getattr: a module or a class may run code to make an attribute that it does not have.
        value = vars(value).get(part) if isinstance(value, type | ModuleType) else None
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


def stored_error(error: BaseException, redact: Redactor | None) -> StoredError:
    """Return an error as it is stored."""
    arguments, replaced = lenient(list(error.args))
    name = f"{type(error).__module__}:{type(error).__qualname__}"
    record = StoredError(type=name, text=lenient(str(error))[0], args=arguments, replaced=replaced[:20])
    return record if redact is None else redacted_error(record, redact)


def redacted_error(record: StoredError, redact: Redactor) -> StoredError:
    """Return a stored error without secrets."""
    try:
        arguments = redact(record.args)
        return structs.replace(
            record,
            text=str(redact(record.text)),
            args=lenient(arguments)[0] if isinstance(arguments, list) else [],
            replaced=_notes(record.replaced, redact),
        )
    except Exception:
        return structs.replace(record, text="[withheld]", args=[], replaced=_notes(record.replaced, redact))


def restored_error(record: StoredError) -> Exception:
    """Return the error to raise again: of its type where that can be made of its arguments, else RecordedError.

    No recorded call ends with anything but an Exception. SystemExit and the like would end the program that replays,
    and StopIteration would end the generator that raises it.
    """
    cls = _loaded_type(record.type)
    replayable = cls is not None and issubclass(cls, Exception)
    if replayable and not issubclass(cls, StopIteration | StopAsyncIteration) and not record.replaced:
        try:
            error = cls(*record.args)
            if isinstance(error, cls) and str(error) == record.text:
                return typing.cast("Exception", error)
        except Exception:
            # The type needs other arguments than the error shows.
            pass
    return RecordedError(record.type, record.text)
