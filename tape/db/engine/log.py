"""The log of the store: stable event names through the standard ``tape`` logger, never a payload.

Events: ``tape.recorded`` (debug), ``tape.slow``, ``tape.retry``, ``tape.connection_lost``, ``tape.migrated``,
``tape.rebuilt``, ``tape.purged``, ``tape.administrative``, ``tape.index_remade``, ``tape.index_broken``,
``tape.rebased``. docs/operations.md tells what each means, and a test holds that list to what is logged.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

__all__ = ["log", "verbose"]

_logger = logging.getLogger("tape")
_logger.addHandler(logging.NullHandler())


@functools.cache
def _structured() -> Any:
    """Return what makes a line of an event and its facts. Its import takes longer than opening a store."""
    import structlog

    return structlog.wrap_logger(
        _logger,
        wrapper_class=structlog.stdlib.BoundLogger,
        processors=[
            structlog.stdlib.add_log_level,
            structlog.processors.format_exc_info,
            structlog.processors.KeyValueRenderer(key_order=["event"]),
        ],
    )


class _Log:
    """Logs events with their facts; nothing is loaded or made for one that nobody wants to see."""

    def debug(self, event: str, **facts: Any) -> None:
        self._log(logging.DEBUG, event, facts)

    def info(self, event: str, **facts: Any) -> None:
        self._log(logging.INFO, event, facts)

    def warning(self, event: str, **facts: Any) -> None:
        self._log(logging.WARNING, event, facts)

    def error(self, event: str, **facts: Any) -> None:
        self._log(logging.ERROR, event, facts)

    def _log(self, level: int, event: str, facts: dict[str, Any]) -> None:
        if _logger.isEnabledFor(level):
            _structured().log(level, event, **facts)


log = _Log()

verbose: Callable[[], bool] = partial(_logger.isEnabledFor, logging.DEBUG)
"""Whether debug events are wanted; asked first, since the hot path cannot afford to build them."""
