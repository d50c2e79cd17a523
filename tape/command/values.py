"""Values as they were typed, turned into what a command takes.

Typer converts every value, also those that were not given, with Pydantic, whose import and schemas take a third of the
time of a short command. What is plain is taken as it is here; everything else, and whatever is wrong, is Typer's.
"""

from __future__ import annotations

from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup

__all__ = ["PlainCommand", "PlainGroup"]


def _take_plainly(param: Any, annotation: Any) -> None:
    """Let a parameter take texts, whole numbers and what was not given without converting it."""
    wanted, declared = get_args(annotation) or (None, None)
    many = param.multiple or param.nargs == -1
    texts, numbers = wanted in (str, str | None), wanted in (int, int | None)
    lists = wanted in (list[str], list[str] | None)
    convert = param.process_value

    def fits(value: Any) -> bool:
        if type(value) is int and numbers:
            least, most = declared.min, declared.max
            return (least is None or value >= least) and (most is None or value <= most)
        return (texts and type(value) is str) or (lists and type(value) is list and set(map(type, value)) == {str})

    def process(context: Any, value: Any) -> Any:
        if value is None and (context.resilient_parsing or not param.required):
            # While a shell completes a line, what must be given may still be missing.
            nothing = () if many else None
            return nothing if param.callback is None else param.callback(context, param, nothing)
        plain = value
        if numbers and type(value) is str and value.isascii() and value.isdigit() and len(value) < 19:
            plain = int(value)
        elif lists and type(value) is tuple:
            plain = list(value)
        return plain if param.callback is None and fits(plain) else convert(context, value)

    param.process_value = process


class _Plain:
    """A command whose parameters take what is plain."""

    annotations: dict[str, Any]
    """How each parameter was declared, by its name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return every parameter, those that Typer adds by itself as well."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if "process_value" not in vars(param):
                _take_plainly(param, self.annotations.get(param.name))
        return params


class PlainCommand(_Plain, TyperCommand):
    """A command of Typer's whose parameters take what is plain."""


class PlainGroup(_Plain, TyperGroup):
    """A group of Typer's whose parameters take what is plain."""
