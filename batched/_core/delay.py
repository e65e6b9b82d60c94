"""Which rule decides when a batch that is not full starts."""

from __future__ import annotations

from batched._core.options import Options
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.batch_cost import LengthCost
from batched._policy.window import Window


def new_window(options: Options, cost: LengthCost | None = None, old: Window | None = None) -> Window:
    """Return the window that `options` ask for: the `old` one, with all it has learned, if it still fits.

    The `cost` of batches is given where it is learned elsewhere.
    """
    timeout_s = options.timeout_ms / 1000
    # Of callers that come back while several batches run, it is not known to which batch they belong.
    one_by_one = options.max_concurrent_batches == 1
    if not (options.adaptive and one_by_one and timeout_s and options.batch_size > 1):
        return Window(timeout_s)
    if isinstance(old, AdaptiveWindow):
        old.configure(timeout_s, options.batch_size)
        return old
    return AdaptiveWindow(timeout_s, options.batch_size, cost)
