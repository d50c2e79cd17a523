"""Values on the command line: points of a tape, moments, spans of time, JSON."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from tape.command.exit_codes import USAGE, Failure
from tape.core import json_text
from tape.core.strict import MAX_DEPTH

__all__ = ["Point", "at_moment", "check_choice", "json_object", "json_value", "point", "span"]

Point = int | datetime | str

_UNITS = {"s": "seconds", "m": "minutes", "h": "hours", "d": "days", "w": "weeks"}
_DATE = re.compile(r"\d{4}-\d{2}-\d{2}([T ].*)?$")


def span(text: str, option: str = "--older-than") -> timedelta:
    """Return ``90s``, ``30m``, ``2h``, ``7d`` or ``4w`` as a span of time."""
    match = re.fullmatch(r"(\d{1,9})([smhdw])", text.strip())
    if match is None:
        raise Failure(
            f"{option}: {text!r} is not a duration", "use a number and a unit, as in 90s, 30m, 2h, 7d or 4w", USAGE
        )
    try:
        return timedelta(**{_UNITS[match[2]]: int(match[1])})
    except OverflowError:
        raise Failure(f"{option}: {text!r} is too long a duration", "use a shorter one, as in 4w", USAGE) from None


def at_moment(text: str, option: str, now: datetime | None = None) -> datetime:
    """Return an ISO date or time, or a span before now, as a moment. Without a time zone it is UTC."""
    if _DATE.match(text):
        try:
            moment = datetime.fromisoformat(text)
        except ValueError:
            raise Failure(
                f"{option}: {text!r} is not a valid date", "use a date such as 2026-03-01 or 2026-03-01T09:30Z", USAGE
            ) from None
        return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
    if not re.fullmatch(r"\d+[smhdw]", text.strip()):
        hint = "use a duration such as 2h or 7d, or a date such as 2026-03-01 or 2026-03-01T09:30Z"
        raise Failure(f"{option}: {text!r} is not a date or a duration", hint, USAGE)
    try:
        return (now or datetime.now(UTC)) - span(text, option)
    except OverflowError:
        raise Failure(f"{option}: {text!r} ago is before the year 1", "use a shorter duration", USAGE) from None


def point(text: str) -> Point:
    """Return the point of a tape that a text names: a seq, a moment, or the name of an anchor or a message."""
    if re.fullmatch(r"\d{1,18}", text):
        return int(text)
    if _DATE.match(text):
        return at_moment(text, "--at")
    return text


def check_choice(value: str | None, choices: Sequence[str], option: str) -> None:
    """Raise Failure for a value that is none of the choices; None means that the option was not given."""
    if value is not None and value not in choices:
        raise Failure(f"{option}: invalid value {value!r}", f"choose one of: {', '.join(choices)}", USAGE)


def json_value(text: str, option: str) -> Any:
    """Return the JSON that an option holds."""
    try:
        return json_text.decode_loose(text, deepest=MAX_DEPTH)
    except json_text.NotJson as error:
        problem = f"the JSON is {error}" if error.deep else f"invalid JSON: {error.__cause__}"
        raise Failure(f"{option}: {problem}", """write it as '{"name": "value"}'""", USAGE) from None


def json_object(text: str | None, option: str) -> dict[str, Any] | None:
    """Return the JSON object that an option holds, or None when it was not given."""
    if text is None:
        return None
    value = json_value(text, option)
    if not isinstance(value, dict):
        raise Failure(f"{option}: the JSON must be an object", """write it as '{"name": "value"}'""", USAGE)
    return value
