"""What is told of a batch that has run."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRecord:
    """A batch that has run, as `on_batch` is told of it."""

    name: str
    """The name of the function."""
    size: int
    """How many items it had."""
    calls: int
    """How many calls these came from."""
    reason: str
    """Why it started, as `stats.closed` has it: `"full"`, `"window"` and others."""
    waited_ms: float
    """How long its oldest call waited, in milliseconds, from the call to the start of the batch.

    Of a step: the oldest of those that joined, 0 if none has.
    """
    waits_ms: tuple[float, ...]
    """How long each call waited that began with it: none in a retry, in a step the calls that joined."""
    took_ms: float
    """How long it ran, in milliseconds."""
    failed: int
    """How many of its items were answered with an exception in the place of a result."""
    item_error: BaseException | None
    """The first of these exceptions; None if there is none, or the caller that had it has left."""
    error: BaseException | None
    """What the function has raised, None if it has returned."""
    runs_again: bool
    """Whether its items run again in smaller batches, as the function has raised."""
    padding: float
    """The share of padding in what the function was given, from 0 to 1; 0 where nothing is padded."""
