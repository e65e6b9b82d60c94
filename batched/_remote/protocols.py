"""How values may travel, by name: `pickle`, or `msgpack` for callers that must not send pickles."""

from __future__ import annotations

from batched._remote.values import Codec, Pickles

PROTOCOLS = ("pickle", "msgpack")


def codec_named(name: str) -> Codec:
    """Return how values become bytes.

    Raises:
        ValueError: There is no such protocol.
        ImportError: It needs a library that is not installed.

    """
    if name == "pickle":
        return Pickles()
    if name == "msgpack":
        from batched._remote.msgpack import Msgpack  # noqa: PLC0415  it needs msgspec

        return Msgpack()
    raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {name!r}")
