"""Pictures, sounds and files in messages: read from the part of any API into one shape. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from msgspec import Struct

__all__ = ["Media", "inline", "label", "plain", "read_data_url", "read_media"]

_HEADER = re.compile(r"data:([\w.+-]+/[\w.+-]+)?(?:;[\w=.+-]+)*?;base64,", re.ASCII)
_BASE64 = re.compile(r"[A-Za-z0-9+/=_\s-]*", re.ASCII)
_KINDS = ("image", "audio", "video")
_MEDIA_TYPES = {"pdf": "application/pdf", "txt": "text/plain", "md": "text/markdown", "csv": "text/csv"}
_LONGEST_NAME = 80


class Media(Struct, frozen=True):
    """A picture, sound, video or file: by URL, as data, by the id under which an API keeps it, or as text."""

    url: str
    """An address, or the data themselves as a data URL; empty when it is given by id or as text."""
    media_type: str | None
    part: dict[str, Any]
    """The part it was read from."""
    kind: str = "image"
    """One of image, audio, video, file."""
    name: str | None = None
    file_id: str | None = None
    home: str | None = None
    """Which provider keeps the file: openai or anthropic."""
    text: str | None = None
    """The text of a document that is text."""


def inline(media: Media) -> tuple[str | None, str] | None:
    """Return the media type and the base64 text of data that the part carries itself, or None."""
    header = _HEADER.match(media.url)
    return None if header is None else (header[1] or media.media_type, media.url[header.end() :])


def read_data_url(text: str) -> Media | None:
    """Return the picture, sound, video or PDF whose data URL is the whole text; else None."""
    header = _HEADER.match(text) if text[:5] == "data:" else None
    if header is None or header[1] is None or not _BASE64.fullmatch(text, header.end()):
        return None
    kind = header[1].partition("/")[0]
    if kind not in _KINDS and header[1] != "application/pdf":
        return None
    return Media(text, header[1], {}, kind if kind in _KINDS else "file")


def label(media: Media) -> str:
    """Return in words what a picture, sound or file is: its name or type, and its size or where it is."""
    words = [f"{media.kind} {plain(media.name)}" if media.name else media.media_type or media.kind]
    data = inline(media)
    if data is not None:
        size = len(data[1]) * 3 // 4
        words.append(f"{size} bytes" if size < 1024 else f"{(size + 512) // 1024} KB")
    elif media.url:
        words.append(plain(media.url, 200))
    elif media.file_id:
        words.append(plain(media.file_id))
    return ", ".join(words)


def plain(text: str, most: int = _LONGEST_NAME) -> str:
    """Return text that fits inside a mark: on one line, without the brackets that end a mark, and short."""
    text = " ".join(text.replace("[", "(").replace("]", ")").split())
    return text if len(text) <= most else f"{text[:most]}…"


def read_media(part: dict[str, Any]) -> Media | None:
    """Return the picture, sound or file that a part is, or None when it is none or lacks what it should hold."""
    kind = part.get("type")
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    return None if reader is None else reader(part)


def _text(source: dict[str, Any], *names: str) -> str | None:
    """Return the first of these fields that is a text and not empty."""
    for name in names:
        value = source.get(name)
        if isinstance(value, str) and value:
            return value
    return None


def _media_from(
    part: dict[str, Any], address: str, media_type: str | None, kind: str | None, name: str | None = None
) -> Media:
    """Return media from an address, a data URL or bare base64."""
    if not media_type and name and "." in name:
        media_type = _MEDIA_TYPES.get(name.rpartition(".")[2].lower())
    header = _HEADER.match(address)
    if header is not None:
        media_type = header[1] or media_type
    elif _BASE64.fullmatch(address, 0, 200):
        address = f"data:{media_type or 'application/octet-stream'};base64,{address}"
    if kind is None:
        family = (media_type or "").partition("/")[0]
        kind = family if family in _KINDS else "file"
    return Media(address, media_type, part, kind, name)


def _by_file_id(part: dict[str, Any], file_id: str, home: str, kind: str, name: str | None = None) -> Media:
    return Media("", None, part, kind, name, file_id, home)


def _openai_image(part: dict[str, Any]) -> Media | None:
    """``image_url`` of chat, ``input_image`` and ``computer_screenshot`` of Responses."""
    held = part.get("image_url")
    url = _text(held, "url") if isinstance(held, dict) else _text(part, "image_url")
    if url is not None:
        return Media(url, _type_in(url), part)
    file_id = _text(part, "file_id")
    return None if file_id is None else _by_file_id(part, file_id, "openai", "image")


def _type_in(url: str) -> str | None:
    header = _HEADER.match(url)
    return None if header is None else header[1]


def _openai_file(part: dict[str, Any]) -> Media | None:
    """``file`` of chat and ``input_file`` of Responses; other parts of type ``file`` are the AI SDK's."""
    held = part.get("file") if part.get("type") == "file" else part
    if not isinstance(held, dict):
        return _plain_part(part)
    name = _text(held, "filename")
    data = _text(held, "file_data", "file_url")
    if data is not None:
        return _media_from(part, data, None, "file", name)
    file_id = _text(held, "file_id")
    return None if file_id is None else _by_file_id(part, file_id, "openai", "file", name)


def _input_audio(part: dict[str, Any]) -> Media | None:
    held = part.get("input_audio")
    data = _text(held, "data") if isinstance(held, dict) else None
    if data is None or not isinstance(held, dict):
        return None
    return _media_from(part, data, f"audio/{_text(held, 'format') or 'wav'}", "audio")


def _sourced(part: dict[str, Any]) -> Media | None:
    """``image`` and ``document`` of Anthropic."""
    source = part["source"]
    kind = "image" if part.get("type") == "image" else "file"
    name = _text(part, "title")
    match source.get("type"):
        case "base64" if data := _text(source, "data"):
            return _media_from(part, data, _text(source, "media_type"), kind, name)
        case "url" if url := _text(source, "url"):
            return Media(url, "application/pdf" if kind == "file" else None, part, kind, name)
        case "file" if file_id := _text(source, "file_id"):
            return _by_file_id(part, file_id, "anthropic", kind, name)
        case "text" if isinstance(source.get("data"), str):
            return Media("", "text/plain", part, "file", name, text=source["data"])
        case "content":
            return Media("", "text/plain", part, "file", name, text=_words(source.get("content")))
    return None


def _words(content: Any) -> str:
    """Return the text of a document's blocks; a picture among them is named."""
    if isinstance(content, str):
        return content
    lines = []
    for block in content if isinstance(content, list) else []:
        media = read_media(block) if isinstance(block, dict) else None
        text = f"[{label(media)}]" if media is not None else _text(block, "text") if isinstance(block, dict) else None
        lines += [text] if text else []
    return "\n".join(lines)


def _plain_part(part: dict[str, Any]) -> Media | None:
    """Parts of the AI SDK, MCP and LangChain: an address or data beside a media type."""
    if isinstance(part.get("source"), dict):
        return _sourced(part)
    family = str(part.get("type")).partition("-")[0]
    address = _text(part, "url", "data", "base64", "image", "audio", "video")
    media_type = _text(part, "mediaType", "mimeType", "media_type", "mime_type")
    if address is None:
        return None
    return _media_from(part, address, media_type, family if family in _KINDS else None, _text(part, "filename", "name"))


def _resource(part: dict[str, Any]) -> Media | None:
    """An embedded resource of MCP."""
    held = part.get("resource")
    if not isinstance(held, dict):
        return None
    name, media_type = _text(held, "uri"), _text(held, "mimeType")
    if isinstance(held.get("text"), str):
        return Media("", media_type or "text/plain", part, "file", name, text=held["text"])
    blob = _text(held, "blob")
    return None if blob is None else _media_from(part, blob, media_type, None, name)


_READERS: dict[str, Callable[[dict[str, Any]], Media | None]] = {
    "image_url": _openai_image,
    "input_image": _openai_image,
    "computer_screenshot": _openai_image,
    "input_file": _openai_file,
    "input_audio": _input_audio,
    "file": _openai_file,
    "document": _plain_part,
    "resource": _resource,
    **dict.fromkeys(
        ("image", "audio", "video", "media", "image-data", "image-url", "file-data", "file-url"), _plain_part
    ),
}
