"""Types of the options, for type checkers and editors.

Nothing here runs. The typed dicts repeat the names, types and defaults of `batched._core.options`, and the
first of an option's sentences, as type checkers and editors need them written down; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from typing import Any, Literal, TypedDict

from batched._core.option_checks import Cache
from batched._core.options import OnFull, PaddingSide, Priority


class Changes(TypedDict, total=False):
    """The options that `configure` changes."""

    batch_size: int
    """Default: 64. The most items in one batch."""
    timeout_ms: float
    """Default: 5.0. How many milliseconds an incomplete batch may wait for more items while the worker is
    idle.
    """
    small_batch_threshold: int
    """Default: 8. Calls of at most this many items go ahead of larger ones."""
    adaptive: bool
    """Default: True. Learn from past batches when it pays to wait for more items, and how large a full batch
    should be.
    """
    max_concurrent_batches: int
    """Default: 1. How many batches run at once, each in its own thread or task."""
    max_queue_size: int | None
    """Default: None. The most items that may wait in the queue; None for no limit."""
    on_full: OnFull
    """Default: "raise". What a call does when the queue has no room: raise `batched.QueueFullError`
    (`"raise"`), or wait, first come first served (`"wait"`).
    """
    isolate_errors: bool
    """Default: True. When a batch raises an `Exception`, run it again in halves, so that only the items at
    fault get the error.
    """
    max_batch_length: int | None
    """Default: None. The most that the lengths of a batch's items may add up to; for arrays, rows times the
    longest row.
    """


class KeywordOptions(Changes, total=False):
    """The options of all decorators."""

    default_deadline_ms: float | None
    """Default: None. The deadline in milliseconds of every call that does not set its own `deadline_ms`; None
    for no deadline.
    """
    fair_by: Callable[..., Hashable] | None
    """Default: None. A function that returns an item's tenant: tenants with waiting items share batches
    evenly.
    """
    group_by: Callable[..., Hashable] | None
    """Default: None. A function that returns an item's key: only items with equal keys share a batch, and
    keys take turns.
    """
    cache: Cache | None
    """Default: None. Where results are kept: a mapping (a dict, `cachetools.LRUCache`, `diskcache.Cache`), or
    an object with `set`, and with a `get` that returns None for a missing key, such as a Redis client.
    """
    cache_key: Callable[..., Hashable] | None
    """Default: None. A function that returns an item's key in the cache; for arrays, which need one, it takes
    the features of a call.
    """
    name: str | None
    """Default: None. The name in threads, logs, errors and metrics; the function's own by default."""


class ListKeywordOptions(KeywordOptions, total=False):
    """The options of the decorators for lists."""

    length: Callable[..., float] | Literal["auto"] | None
    """Default: "auto". How long an item is: items of similar length share a batch where padding proves to
    cost time.
    """
    max_pieces: int
    """Default: 100000. How many pieces of a stream may wait for its consumer."""


class ArrayKeywordOptions(KeywordOptions, total=False):
    """The options of the decorators for arrays."""

    pad_token: Any
    """Default: 0. What rows are padded with: a number, or a dict with a number for each feature."""
    pad_tokens: Any
    """Another name of `pad_token`."""
    padding_side: PaddingSide
    """Default: "right". Where rows are padded: `"right"`, after the row, or `"left"`, before it."""
    pad_to_multiple_of: int | Mapping[Any, int] | None
    """Default: None. Round the length of rows up to a multiple of this: a number for all features, or a dict
    with a number for each feature to round.
    """
    unpad_outputs: bool | Mapping[Any, Any]
    """Default: False. Cut the padding off the outputs, so that an answer does not depend on the other calls
    in its batch.
    """
    spread_kwargs: bool
    """Default: False. Pass the features by name, as `func(input_ids=..., attention_mask=...)`, instead of as
    one dict.
    """


class OtherCallChanges(TypedDict, total=False):
    """The options of single calls that do not change the type of answers."""

    deadline_ms: float | Literal["default"] | None
    """Default: "default". The most milliseconds from a call to its answer."""
    priority: Priority | None
    """Default: None. `"interactive"` calls go ahead of `"bulk"` calls; None lets the size decide
    (`small_batch_threshold`).
    """


class CallChanges(OtherCallChanges, total=False):
    """The options of single calls."""

    return_exceptions: bool
    """Default: False. Return each exception in its item's place, as `asyncio.gather` does, instead of raising
    the first.
    """
