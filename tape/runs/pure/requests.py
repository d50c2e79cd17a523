"""Requests: the arguments of a call as JSON, what of them is compared, and their digest. Pure."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from tape.core.redact import Redactor
from tape.errors import InvalidEntry
from tape.runs.pure.deltas import StoredField
from tape.runs.pure.fields import Field, digest_of, encoded

__all__ = ["Body", "Normaliser", "Reader", "parameter_names"]

_decode = msgspec.json.Decoder().decode


class Body:
    """One request as it is compared and stored. Keeps the JSON of its fields, to tell what the next one adds."""

    def __init__(self, fields: dict[str, Field], digest: str) -> None:
        self._fields = fields
        self.digest = digest
        self.seq = 0
        """The entry that it was stored with."""

    def stored(self, before: Body | None, contexts: Mapping[bytes, StoredField]) -> dict[str, StoredField]:
        """Return its fields as they are stored: beside those of an earlier call, or as pointers to ``contexts``."""
        return {
            name: contexts[field.digest]
            if field.digest in contexts
            else field.stored(before.seq if before else 0, before._fields.get(name) if before else None)
            for name, field in self._fields.items()
        }

    def grown_from(self, before: Body) -> tuple[int, int]:
        """Return how much of an earlier request this one adds to, and how much of it stayed as it was.

        The request with the largest is the one that it goes on from: a list of tools that never changes tells nothing.
        """
        grown = same = 0
        for name, field in self._fields.items():
            earlier = before._fields.get(name)
            if earlier is not None and field.extends(earlier):
                if field.size > earlier.size:
                    grown += earlier.size
                else:
                    same += earlier.size
        return grown, same

    def goes_on_from(self, before: Body) -> bool:
        """Whether it repeats an earlier request or adds to it, and so takes its place."""
        grown, _ = self.grown_from(before)
        return grown > 0 or before.digest == self.digest

    def names(self) -> list[str]:
        """Return the names of its fields."""
        return list(self._fields)

    def values(self) -> dict[str, Any]:
        """Return the request as plain JSON."""
        return {name: field.json() for name, field in self._fields.items()}


class Normaliser:
    """Drops what changes from run to run before requests are compared.

    Each pattern is a JSON pointer into the request, in which ``*`` stands for any name or index, or the bare name of a
    field, which is dropped wherever it stands.
    """

    def __init__(self, patterns: Iterable[str]) -> None:
        self.patterns = [_pattern(pattern) for pattern in patterns]
        self._paths = [(pattern, pattern.split("/")[1:]) for pattern in self.patterns if pattern.startswith("/")]
        self._names = {pattern for pattern in self.patterns if not pattern.startswith("/")}

    def __call__(self, request: dict[str, Any], dropped: dict[str, int]) -> dict[str, Any]:
        """Return a request without what is dropped; counts in ``dropped`` how often each pattern was met."""
        return _without(request, self._paths, self._names, dropped) if self.patterns else request


def _pattern(pattern: Any) -> str:
    if not isinstance(pattern, str) or not pattern.strip("/"):
        raise InvalidEntry("normalise", f"must be a list of JSON pointers or field names, not {pattern!r}")
    return pattern


_Paths = Sequence[tuple[str, Sequence[str]]]
"""Patterns, each with the part of its path that is still ahead."""


def _without(value: Any, paths: _Paths, names: set[str], dropped: dict[str, int]) -> Any:
    items = value.items() if isinstance(value, dict) else enumerate(value)
    remaining: list[tuple[Any, Any]] = []
    for name, item in items:
        part = str(name).replace("~", "~0").replace("/", "~1")
        ahead = [(pattern, path[1:]) for pattern, path in paths if path[0] in ("*", part)]
        ending = next((pattern for pattern, path in ahead if not path), name if name in names else None)
        if ending is not None:
            dropped[ending] = dropped.get(ending, 0) + 1
            continue
        further = isinstance(item, dict | list)
        remaining.append((name, _without(item, ahead, names, dropped) if further else item))
    return dict(remaining) if isinstance(value, dict) else [item for _, item in remaining]


def parameter_names(fn: Any) -> list[str]:
    """Return the names of a function's positional parameters: a call by position and one by name are the same."""
    try:
        parameters = inspect.signature(fn).parameters.values()
    except (TypeError, ValueError):
        return []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return [parameter.name for parameter in parameters if parameter.kind in positional]


class Reader:
    """Reads calls as requests: named, redacted, normalised and digested."""

    def __init__(self, normaliser: Normaliser) -> None:
        self.normaliser = normaliser
        self.dropped: dict[str, int] = {}

    def read(
        self,
        names: Sequence[str],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        before: Sequence[Body] = (),
        rendered: Iterable[Field] = (),
        redact: Redactor | None = None,
    ) -> Body:
        """Return the request of a call, which probably extends one of ``before``, or is one of ``rendered``."""
        request: dict[str, Any] = dict(zip(names, args, strict=False)) if args else {}
        request.update(kwargs)
        if len(args) > len(names):
            request["*"] = list(args[len(names) :])
        if redact is not None:
            request = redact(_decode(encoded(request)))
            if not isinstance(request, dict):
                raise InvalidEntry("redact", f"must return a dict for a request, not a {type(request).__name__}")
        fields: dict[str, Field] = {}
        for name, value in request.items():
            earlier = [body._fields[name] for body in before if name in body._fields]
            fields[name] = Field(value, [*earlier, *rendered])
        body = Body(fields, "")
        body.digest = self.digest_of(body)
        return body

    def digest_of(self, body: Body) -> str:
        """Return the digest of what is compared of a request."""
        if not self.normaliser.patterns:
            return _joined({name: field.digest for name, field in body._fields.items()})
        return self.digest_of_values(body.values())

    def digest_of_values(self, request: dict[str, Any]) -> str:
        """Return the digest of a request that is plain JSON."""
        normalised = self.normaliser(request, self.dropped)
        return _joined({name: digest_of(value) for name, value in normalised.items()})


def _joined(digests: Mapping[str, bytes]) -> str:
    whole = hashlib.sha256()
    for name in sorted(digests):
        whole.update(f"{len(name)}:{name}".encode("utf-8", "surrogatepass"))
        whole.update(digests[name])
    return whole.hexdigest()[:32]
