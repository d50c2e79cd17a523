"""Converting the values of a command line without Pydantic, where that is possible.

Typer converts every value with Pydantic, also missing ones. Importing it and building its schemas takes a third of the
time of a short command. Plain values are converted here. All others, and invalid ones, are left to Typer.
"""

from __future__ import annotations

from typing import Any, get_args

from typer.core import TyperCommand, TyperGroup

__all__ = ["PlainCommand", "PlainGroup"]


def _accept_plain_values(param: Any, annotation: Any) -> None:
    """Let a parameter accept strings, integers and missing values without Pydantic."""
    type_, declared = get_args(annotation) or (None, None)
    many = param.multiple or param.nargs == -1
    texts, numbers = type_ in (str, str | None), type_ in (int, int | None)
    lists = type_ in (list[str], list[str] | None)
    convert = param.process_value

    def fits(value: Any) -> bool:
        if type(value) is int and numbers:
            least, most = declared.min, declared.max
            return (least is None or value >= least) and (most is None or value <= most)
        return (texts and type(value) is str) or (lists and type(value) is list and set(map(type, value)) == {str})

    def process(context: Any, value: Any) -> Any:
        if value is None and (context.resilient_parsing or not param.required):
            # While a shell completes a line, required values may still be missing.
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
    """A command whose parameters accept plain values without Pydantic."""

    annotations: dict[str, Any]
    """How each parameter was declared, by its name."""

    def get_params(self, ctx: Any) -> list[Any]:
        """Return every parameter, those that Typer adds by itself as well."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for param in params:
            if "process_value" not in vars(param):
                _accept_plain_values(param, self.annotations.get(param.name))
        return params


class PlainCommand(_Plain, TyperCommand):
    """A Typer command whose parameters accept plain values without Pydantic."""


class PlainGroup(_Plain, TyperGroup):
    """A Typer group whose parameters accept plain values without Pydantic."""
