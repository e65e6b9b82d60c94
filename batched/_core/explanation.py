"""What a batcher has found, and does, in plain sentences, made of the numbers in its stats."""

from __future__ import annotations

from collections.abc import Iterator

from batched._core.options import ArrayOptions, Options
from batched._core.stats import Stats
from batched._policy.lengths import Choice
from batched._policy.window import Learned, StartReason, short

_FEW = 12  # batches: until then little is known
_ALONE = 1.5  # items: batches of fewer have nothing to share
_MANY = 0.5  # of the batches
_COSTLY = 0.2  # of the time
_FELT = 0.05  # of the time


def explain(stats: Stats, options: Options) -> str:
    """Return one sentence a line."""
    if not stats.total_batches:
        return "No batch has run yet, so nothing is known."
    parts = (_cost, _length, _size, _wait, _losses)
    return "\n".join(sentence for part in parts for sentence in part(stats, options))


def _cost(stats: Stats, options: Options) -> Iterator[str]:
    """Say what a batch costs, and whether that is worth sharing."""
    learned = stats.learned
    if learned is None:
        yield f"Batches took {short(stats.avg_processing_time * 1000)} ms on average."
        if options.batch_size == 1:
            return
        if options.adaptive and options.timeout_ms and options.max_concurrent_batches == 1:
            yield "What a batch and an item cost is not known yet: more batches have to run."
        else:
            yield (
                "What a batch and an item cost is not learned: that needs adaptive=True, timeout_ms above 0 "
                "and max_concurrent_batches=1."
            )
        return
    if not (_sizes_differ(stats) or learned.length_ms):
        items = stats.batch_size.max
        together = short(learned.batch_ms + learned.item_ms * items)
        yield (
            f"A batch of {items:.0f} costs {together} ms. What an item adds is not known: "
            "all batches had the same size."
        )
        return
    length = f", and {short(learned.length_ms)} ms for a unit of length" if learned.length_ms else ""
    each = f"each item adds {short(learned.item_ms)} ms{length}"
    yield f"A batch costs {short(learned.batch_ms)} ms, and {each}."
    size = stats.best_batch_size or options.batch_size
    if stats.total_batches >= _FEW and _fixed_share(learned, size) < 1 / size:
        yield "Items cost nearly all of that, so that to share batches saves next to nothing."


def _sizes_differ(stats: Stats) -> bool:
    """Whether batches tell what an item adds."""
    return stats.batch_size.min < stats.batch_size.max


def _fixed_share(learned: Learned, size: int) -> float:
    """Return the share of a batch of `size` items that does not depend on its items."""
    return learned.batch_ms / 1000 * learned.capacity / size


def _length(stats: Stats, options: Options) -> Iterator[str]:
    """Say whether length matters, and what padding costs."""
    chosen = stats.chosen.get(Choice.LENGTH, 0)
    waste = stats.padding.waste_percent
    padding = f"{waste:.0f} % of what the function was given is padding"
    if chosen:
        yield (
            f"Padding costs time, so items of like length share batches: {chosen} batches were chosen so, "
            f"and {padding}."
        )
    elif stats.chosen:
        yield f"Length costs so little that the order is that of arrival ({padding})."
    elif isinstance(options, ArrayOptions) or options.batch_size == 1:
        return
    elif options.length is None:
        yield "Lengths are not looked at, because of length=None."
    elif stats.padding.padded:
        yield "Length has been looked at, and was not found to cost time that another order would save."
    elif stats.total_batches >= _FEW:
        yield (
            "Length has not mattered: batches are too short for that, or items have none that shows. If the "
            "function pads items of another kind, say how long they are: set length to a function."
        )


def _size(stats: Stats, options: Options) -> Iterator[str]:
    """Say how large batches are, and what would make them better."""
    most = options.batch_size
    full = stats.closed.get(StartReason.FULL, 0) / stats.total_batches
    mean = stats.batch_size.mean
    yield f"Batches have {mean:.1f} items on average, of at most {most}; {full:.0%} started full."
    if stats.fits_memory is not None:
        yield f"No more than {stats.fits_memory} items fit into memory."
    if stats.best_batch_size is not None:
        yield f"Batches of {stats.best_batch_size} items serve best: none has more, but for rare trials."
        return
    if stats.total_batches < _FEW:
        return
    learned = stats.learned
    apart = stats.apart_time / stats.processing_time.sum if stats.apart_time else 0.0
    if apart > _FELT:
        other = "another key of group_by: with fewer keys"
        if options.group_by is None:
            arrays = isinstance(options, ArrayOptions)
            other = (
                "arrays of another layout: with fewer layouts" if arrays else "other columns: with equal ones"
            )
        yield (
            f"For {apart:.0%} of the time the function works on batches with room for items that wait, but "
            f"have {other}, these would share a batch."
        )
    elif mean < _ALONE and most > 1:
        yield "Callers come one at a time: there is nothing to share."
    elif mean > most / 2 and full > _MANY and learned is not None and _sizes_differ(stats):
        share = _fixed_share(learned, most)
        if share <= _COSTLY:
            return
        yield (
            f"Of the time of a full batch {share:.0%} does not depend on its items: a larger batch_size "
            "would share it among more."
        )


def _wait(stats: Stats, options: Options) -> Iterator[str]:
    """Say how long batches are held back."""
    if options.batch_size == 1:
        pass
    elif not options.timeout_ms:
        yield "No batch is held back, because of timeout_ms=0."
    elif stats.learned is None:
        yield f"A batch that is not full waits until its oldest item is {short(options.timeout_ms)} ms old."
    elif stats.learned.wait_ms < options.timeout_ms / 1000:
        yield "No batch is held back: a wait for more calls would cost more than it saves."
    else:
        yield (
            f"Batches are held back for {short(stats.learned.wait_ms)} ms, for callers that were just "
            "answered and come straight back, or for the rest of a burst."
        )
    mean_ms, long_ms = stats.wait.mean * 1000, stats.wait.percentile(99) * 1000
    yield f"Items wait for {short(mean_ms)} ms on average, and one in a hundred for {short(long_ms)} ms."


def _losses(stats: Stats, _: Options) -> Iterator[str]:
    """Say which items failed, or were not run."""
    if stats.total_divided:
        yield f"{stats.total_divided} batches failed and ran again in halves, to find the items that fail."
    if stats.isolation_paused:
        yield (
            "No item of the last of them worked, as in an outage: until something works, batches that fail "
            "do not run again."
        )
    elif stats.total_failed:
        yield f"{stats.total_failed} of {stats.total_processed} items failed."
    if stats.total_expired:
        yield f"{stats.total_expired} items were late before they could start."
    if stats.total_rejected:
        yield f"{stats.total_rejected} items were refused, as the queue had no room."
