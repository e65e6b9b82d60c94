"""The first frame from each side: its version, its limits, its functions. It is JSON, never a pickle."""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass, field, fields
from typing import Any, Self

from batched._remote.frames import MAX_FRAME_BYTES, VERSION, Bytes, Frame, FrameError, Kind, frame


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What clients need to know of a function."""

    name: str
    streams: bool
    maps_singly: bool
    """Whether each element of a map is a call of its own: arrays, or elements with deadlines."""
    batch_size: int
    max_queue_size: int | None
    max_pieces: int
    max_concurrent_batches: int = 1
    default_deadline_ms: float | None = None


FOLLOWED = ("batch_size", "max_queue_size", "max_pieces", "max_concurrent_batches")
"""Options that are those of the function in its server, for its clients too."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Greeting:
    version: int = VERSION

    @classmethod
    def read(cls, found: Frame) -> Self:
        """Return the greeting in a frame; `FrameError` if it holds none."""
        if found.kind != Kind.HELLO:
            raise FrameError(f"the first frame must be a greeting, got one of kind {found.kind}")
        try:
            told = json.loads(bytes(found.payload))
        except (ValueError, RecursionError) as error:
            raise FrameError(f"the greeting cannot be read: {error}") from error
        if not isinstance(told, dict):
            raise FrameError("the greeting is no JSON object")
        blank = cls()
        known: dict[str, Any] = {each.name: told[each.name] for each in fields(cls) if each.name in told}
        for name, value in known.items():
            if not isinstance(value, type(getattr(blank, name))):
                raise FrameError(f"{name} in the greeting is of the wrong type, got {value!r:.50}")
        return cls(**known)

    def frame(self) -> list[Bytes]:
        """Return the parts of the frame."""
        return frame(Kind.HELLO, 0, 0, 0, json.dumps(asdict(self)).encode())


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientGreeting(_Greeting):
    """What a client says."""

    protocol: str = "pickle"
    """How it sends values."""
    client: str = ""
    """One name for all connections of a process."""
    nonce: str = ""
    """What the server is to prove with: both sides show that they know the token, and neither says it."""
    proof: str = ""
    """Said in a second greeting, if the server asks for it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerGreeting(_Greeting):
    """What a server answers: the functions that it has, or why it takes no calls from this client."""

    max_frame_bytes: int = MAX_FRAME_BYTES
    """The most bytes of a call; a client takes `MAX_FRAME_BYTES` of an answer."""
    functions: list[dict[str, Any]] = field(default_factory=list)
    """Calls have the places of their functions in this list."""
    refusal: str = ""
    nonce: str = ""
    """What the client is to prove with, in a second greeting; then the server greets once more."""
    proof: str = ""

    def described(self) -> dict[str, Described]:
        """Return the functions by name, without what only a later version says of them."""
        names = [each.name for each in fields(Described)]
        told = [{name: each[name] for name in names if name in each} for each in self.functions]
        return {each["name"]: Described(**each) for each in told}
