"""Types of the options, for type checkers and editors.

Nothing here runs. The typed dicts repeat the names, types and defaults of `batched._core.options`, and the
first of an option's sentences, as type checkers and editors need them written down; a test compares the two.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any, Literal, TypeAlias, TypedDict

from batched._core.batch_record import BatchRecord
from batched._core.option_checks import Cache, MappingCache, SharedByFunctions
from batched._core.options import OnFull, PaddingSide, Priority

ByPosition: TypeAlias = float | Literal["auto"]
"""An option that is not named: `batch_size`, `timeout_ms` and `small_batch_threshold`, in this order.

Only the overload for these alone has their names, types and defaults. The decorator checks all of them.
"""


class Changes(TypedDict, total=False):
    """The options that `configure` changes."""

    batch_size: int
    """Default: 64. The most items in one batch."""
    timeout_ms: float | Literal["auto"]
    """Default: "auto". How many milliseconds an incomplete batch may wait for more items while the worker is
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


class OneStageOptions(Changes, total=False):
    """The options of all decorators that say nothing of what a function takes or returns."""

    workers: SharedByFunctions | None
    """Default: None. The worker threads that run the batches: a `batched.Workers`, which other functions may
    share.
    """
    batch_sizes: Sequence[int] | None
    """Default: None. The only sizes that a batch may have, in ascending order, for a compiled model."""
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
    """Default: None. A function that returns an item's key in `cache` and in `request_cache`; for arrays,
    which need one, it takes the features of a call.
    """
    on_batch: Callable[[BatchRecord], object] | None
    """Default: None. A function that is told of each batch after it has run, with a `batched.BatchRecord`."""
    name: str | None
    """Default: None. The name in threads, logs, errors and metrics; the function's own by default."""


class KeywordOptions(OneStageOptions, total=False):
    """The options of all decorators; with a stage, others hold, that say what callers pass and get."""

    prepare: None
    """Default: None. What to do with a batch before the function, such as to tokenize it: while one batch is
    in the function, the next one is prepared in a second thread.
    """
    finish: None
    """Default: None. What to do with the outputs of a batch after the function, such as to turn them into
    lists: while the next batch is in the function, they are finished in a third thread.
    """


class StagedListOptions(OneStageOptions, total=False):
    """The options of the decorators for lists, of a function with `prepare` or `finish`."""

    length: Callable[..., float] | Literal["auto"] | None
    """Default: "auto". How long an item is: items of similar length share a batch where padding proves to
    cost time.
    """


class ListKeywordOptions(StagedListOptions, KeywordOptions, total=False):
    """The options of the decorators for lists."""

    max_pieces: int
    """Default: 100000. How many pieces of a stream may wait for its consumer."""
    continuous: bool
    """Default: False. Whether items join a batch while it runs, in the places of those that have ended."""
    max_joining: int | None
    """Default: None. How many items may join a batch at one step, with `continuous`."""
    max_joining_length: int | None
    """Default: None. The most that the lengths of the items that join at one step may add up to, with
    `continuous`.
    """


class StagedArrayOptions(OneStageOptions, total=False):
    """The options of the decorators for arrays, of a function with `prepare` or `finish`."""

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
    pad_to_lengths: Sequence[int] | Mapping[Any, Sequence[int]] | None
    """Default: None. The only lengths that rows may be padded to, in ascending order: each batch has the
    first one that is long enough.
    """
    unpad_outputs: bool | Mapping[Any, Any]
    """Default: False. Cut the padding off the outputs, so that an answer does not depend on the other calls
    in its batch.
    """
    spread_kwargs: bool
    """Default: False. Pass the features by name, as `func(input_ids=..., attention_mask=...)`, instead of as
    one dict.
    """


class ArrayKeywordOptions(StagedArrayOptions, KeywordOptions, total=False):
    """The options of the decorators for arrays."""


class OtherCallChanges(TypedDict, total=False):
    """The options of single calls that do not change the type of answers."""

    deadline_ms: float | Literal["default"] | None
    """Default: "default". The most milliseconds from a call to its answer."""
    priority: Priority | None
    """Default: None. `"interactive"` calls go ahead of `"bulk"` calls; None lets the size decide
    (`small_batch_threshold`).
    """
    request_cache: MappingCache | None
    """Default: None. Where the results of one request are kept: a dict, or another mapping, which is new for
    each request.
    """


class CallChanges(OtherCallChanges, total=False):
    """The options of single calls."""

    return_exceptions: bool
    """Default: False. Return each exception in its item's place, as `asyncio.gather` does, instead of raising
    the first.
    """
