"""Ids made of names: what another program calls its things, as something that can be the id of a tape or a key."""

from __future__ import annotations

import re
from hashlib import blake2b
from urllib.parse import quote

from tape.core import strict
from tape.errors import InvalidEntry

__all__ = ["as_id"]

_DIGEST = 32
_DIGESTED = re.compile(rf"~[0-9a-f]{{{_DIGEST}}}\Z")
"""How an id ends that was made of another name: no name may look so that was not."""
_SHORTEST = _DIGEST + 2
"""One readable character, the mark and the digest."""


def as_id(*names: str, most: int = strict.MAX_ID) -> str:
    """Return an id of at most ``most`` characters for any name: of a tape, an owner, a label or a key.

    A name that can be an id and can be printed is returned as it is. Any other, also one that is too long, empty or
    begins with "~", becomes its readable beginning, "~" and a digest of the whole. A name that already looks so gets a
    digest of its own, so different names never have the same id.

    Several names are quoted as the parts of a path and joined with "/", and different lists of them never have the
    same id, either. One name is not quoted: ``as_id("a/b")`` is ``as_id("a", "b")``, so build ids of one kind with the
    same number of names. Slots and blocks take ids of 240 characters. Raises InvalidEntry for what is no text.
    """
    if not names:
        raise InvalidEntry("names", "must not be empty")
    for name in names:
        if not isinstance(name, str):
            raise InvalidEntry("names", f"must be strings, not {strict.shown(name)}")
    if type(most) is not int or not _SHORTEST <= most <= strict.MAX_ID:
        raise InvalidEntry("most", f"must be from {_SHORTEST} to {strict.MAX_ID}, not {strict.shown(most)}")
    if len(names) == 1:
        return _short(str.__str__(names[0]), most)
    return _short("/".join(quote(str.__str__(name), safe="", errors="surrogatepass") for name in names), most)


def _short(name: str, most: int) -> str:
    fits = 0 < len(name) <= most and name.isprintable() and not name.isspace()
    if fits and name[0] != strict.RESERVED and not _DIGESTED.search(name):
        return name
    kept = "".join(char for char in name if char.isprintable()).lstrip(strict.RESERVED)
    digest = blake2b(name.encode("utf-8", "surrogatepass"), digest_size=_DIGEST // 2).hexdigest()
    return f"{kept[: most - _DIGEST - 1] or '-'}~{digest}"
