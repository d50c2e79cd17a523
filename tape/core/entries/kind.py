"""What every kind of entry declares: its name, its version, what makes two of them the same, and how it folds.

To add a kind, write a subclass of ``Payload`` in the module of its subject and list it in ``payloads``. Its class
variables and methods are all that the fold, the recorder and the codec know of it. An import also has to check what it
refers to, in ``tape.core.transfer.references``.
"""

from __future__ import annotations

from typing import Any, ClassVar

from msgspec import Struct

from tape.core.view.fold import Head, Op

__all__ = ["Payload"]


class Payload(Struct, omit_defaults=True):
    """What an entry says."""

    kind: ClassVar[str]
    version: ClassVar[int] = 1
    """The version in which this release writes the payload. Older ones are brought up to it when they are read."""
    changes_view: ClassVar[bool] = True
    """Whether it changes what readers see: ``expected_view`` tells such entries, and a closed tape takes none."""
    compared: ClassVar[tuple[str, ...]] = ()
    """The fields that the caller gave, which make two entries the same; empty when all of them do."""

    def content(self) -> dict[str, Any]:
        """Return what makes two entries the same: the kind, and what the caller gave."""
        return {"kind": self.kind} | {name: getattr(self, name) for name in self.compared or self.__struct_fields__}

    def fold(self, head: Head, seq: int) -> list[Op]:
        """Change ``head``, which stands at the entry already, and return what else changes in the view."""
        return []
