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
    """Default: 5.0. How long an incomplete batch may wait for more items while the worker is idle; 0 never
    waits.
    """
    small_batch_threshold: int
    """Default: 8. Calls of at most this many items go ahead of larger ones."""
    adaptive: bool
    """Default: True. Wait only while waiting pays, which is learned from the first batches on: for callers
    that were just answered and come straight back, and for the rest of a burst.
    """
    max_concurrent_batches: int
    """Default: 1. How many batches run at once, each in a thread, or task, of its own."""
    max_queue_size: int | None
    """Default: None. The most items that wait; None for no bound."""
    on_full: OnFull
    """Default: "raise". What happens to a call for which the queue has no room: `"raise"` a
    `batched.QueueFullError`, or `"wait"` for room, first come first served.
    """
    isolate_errors: bool
    """Default: True. When a batch raises an `Exception`, run it again in halves until only the items that
    fail are left, and answer all others.
    """
    max_batch_length: int | None
    """Default: None. The most that the lengths of a batch's items add up to, by `length` or else `len`; for
    arrays, rows times the longest of them, along the second axis of padded features.
    """


class KeywordOptions(Changes, total=False):
    """The options of all decorators."""

    default_deadline_ms: float | None
    """Default: None. The `deadline_ms` of every call that does not set its own with
    `fn.options(deadline_ms=...)`.
    """
    group_by: Callable[..., Hashable] | None
    """Default: None. A function that returns an item's key, for arrays the key of a call's features; one
    without parameters, such as the `get` of a context variable, is asked in the caller's context.
    """
    fair_by: Callable[..., Hashable] | None
    """Default: None. A function that returns an item's tenant, for arrays the tenant of a call's features;
    one without parameters, such as the `get` of a context variable, is asked in the caller's context.
    """
    cache: Cache | None
    """Default: None. A mapping of results (a dict, `cachetools.LRUCache`, `diskcache.Cache`), or an object
    with `set`, and a `get` that returns None for a key that it does not have, such as a client of Redis.
    """
    cache_key: Callable[..., Hashable] | None
    """Default: None. A function that returns an item's key in the cache, for arrays the key of a call's
    features.
    """
    name: str | None
    """Default: None. For threads, logs and errors; the function's own by default."""


class ListKeywordOptions(KeywordOptions, total=False):
    """The options of the decorators for lists."""

    length: Callable[..., float] | Literal["auto"] | None
    """Default: "auto". How long items are: items of like length share a batch where padding to the longest
    one takes time, which is learned from the batches that run.
    """
    max_pieces: int
    """Default: 100000. For a function that is a generator: how many pieces may wait for one consumer."""


class ArrayKeywordOptions(KeywordOptions, total=False):
    """The options of the decorators for arrays."""

    pad_token: Any
    """Default: 0. The padding of rows: a number, or a dict of a number per feature."""
    pad_tokens: Any
    """Another name of `pad_token`."""
    padding_side: PaddingSide
    """Default: "right". Where rows are padded: `"right"`, after the row, or `"left"`."""
    pad_to_multiple_of: int | Mapping[Any, int] | None
    """Default: None. Round the length of rows, along their first axis, up to a multiple of this, also where
    the rows of a batch do not differ.
    """
    unpad_outputs: bool | Mapping[Any, Any]
    """Default: False. Cut the padding off the outputs, so that an answer does not depend on the other calls
    of its batch.
    """
    spread_kwargs: bool
    """Default: False. Pass the features by name, as `func(input_ids=..., attention_mask=...)`."""


class OtherCallChanges(TypedDict, total=False):
    """The options of single calls that do not change the type of answers."""

    deadline_ms: float | Literal["default"] | None
    """Default: "default". The most that a call may take, waiting and running, counted from the call."""
    priority: Priority | None
    """Default: None. `"interactive"` goes ahead of `"bulk"`; None lets the size decide."""


class CallChanges(OtherCallChanges, total=False):
    """The options of single calls."""

    return_exceptions: bool
    """Default: False. Return an exception in its item's place, as `asyncio.gather` does, instead of raising
    the first.
    """
