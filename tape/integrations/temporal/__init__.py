"""Temporal: a ``StorageDriver`` that keeps histories on tapes, so that a workflow's own history holds pointers."""

from tape.integrations.temporal.driver import TapeStorageDriver

__all__ = ["TapeStorageDriver"]
