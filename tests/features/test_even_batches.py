"""The feature that spreads callers over several workers, without a batcher: when it takes part, and how."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from batched._core.options import Options
from batched._features.even_batches import EvenBatches
from batched._policy.adaptive import AdaptiveWindow
from batched._policy.several import SeveralWindow
from tests.kit.river import StandInRiver

SEVERAL = Options(max_concurrent_batches=2)


def alone(options: Options = SEVERAL, window: Any = None) -> tuple[EvenBatches, StandInRiver]:
    """Return the feature, and what it sees."""
    feature, river = EvenBatches(SimpleNamespace(window=window)), StandInRiver()
    feature.begin(river, options)
    return feature, river


def knowing(share: int | None) -> SeveralWindow:
    """Return a window that knows a share of whatever waits."""
    window = SeveralWindow(None, 32, workers=2, running={})
    window.share = lambda _: share  # type: ignore[method-assign]
    return window


@pytest.mark.parametrize(
    ("options", "hooks"),
    [
        (SEVERAL, ("room",)),
        (Options(), ()),
        (Options(max_concurrent_batches=2, adaptive=False), ()),
        (Options(max_concurrent_batches=2, batch_sizes=(1, 8), batch_size=8), ()),
    ],
)
def test_it_takes_part_only_where_several_batches_of_any_size_may_run_and_it_is_learned(
    options: Options, hooks: tuple[str, ...]
) -> None:
    """From the beginning, and when options change."""
    feature, _ = alone(options)
    assert feature.hooks == hooks
    for before in (Options(), SEVERAL):
        feature, _ = alone(before)
        feature.configure(options)
        assert feature.hooks == hooks


@pytest.mark.parametrize(("share", "found"), [(None, 8), (3, 3), (8, 8), (9, 8)])
def test_a_batch_has_the_share_of_one_worker_at_most(share: int | None, found: int) -> None:
    """No more than it has room for."""
    feature, river = alone(window=knowing(share))
    assert feature.room(river.queue, 8, 0.0) == found


def test_a_window_of_one_worker_knows_no_share() -> None:
    """As after a change of options, until the window is another one."""
    feature, river = alone(window=AdaptiveWindow(None, 32))
    assert feature.room(river.queue, 8, 0.0) == 8
