"""The log of the store: stable event names through the standard ``tape`` logger, never a payload.

Events: ``tape.recorded`` (debug), ``tape.slow``, ``tape.retry``, ``tape.connection_lost``, ``tape.migrated``,
``tape.rebuilt``, ``tape.purged``, ``tape.administrative``, ``tape.index_remade``, ``tape.index_broken``,
``tape.rebased``. docs/operations.md tells what each means, and a test holds that list to what is logged.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import structlog

__all__ = ["log", "verbose"]

_logger = logging.getLogger("tape")
_logger.addHandler(logging.NullHandler())

log: Any = structlog.wrap_logger(
    _logger,
    wrapper_class=structlog.stdlib.BoundLogger,
    processors=[
        structlog.stdlib.filter_by_level,
        structlog.stdlib.add_log_level,
        structlog.processors.format_exc_info,
        structlog.processors.KeyValueRenderer(key_order=["event"]),
    ],
)


verbose: Callable[[], bool] = partial(_logger.isEnabledFor, logging.DEBUG)
"""Whether debug events are wanted; asked first, since the hot path cannot afford to build them."""
