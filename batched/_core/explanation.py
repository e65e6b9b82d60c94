"""What a batcher has found, and does, in plain sentences, made of the numbers in its stats."""

from __future__ import annotations

from collections.abc import Iterator

from batched._core.options import ArrayOptions, Options, knows_lengths
from batched._core.stats import Stats
from batched._policy.lengths import Choice
from batched._policy.window import DEFAULT_S, Learned, StartReason, short

_LEAST_BATCHES = 12  # batches: until then little is known
_ALONE = 1.1  # items: batches of fewer have next to nothing to share
_MOST_OF_THEM = 0.5  # of the batches
_COSTLY = 0.2  # of the time
_BESIDE = ("prepare", "finish")  # stages besides the function
_NEARLY_ALL = 0.9  # of the time of all stages
_FELT = 0.05  # of the time
_UNLIKE = 1.0  # percent of padding: with less, lengths hardly differ
_MANY_COPIES = 20.0  # percent
_MANY_LATE = 0.01  # of the items
_LOOKS = 24  # batches of several items: with fewer, little is known of lengths
_SHORT_S = 200e-6  # batches that take less are not looked at
_BEHIND = 0.75  # of the time of a batch: items that wait for longer were left out of a full one, ...
_SOME = 8  # batches of another size than most: fewer tell little of what an item adds
_ABOUT = 0.1  # of a size: a smaller difference tells little
_TWICE = 2  # ... so that a batch of so many times the size would be full too

_WITH_ALL = (
    StartReason.CALLERS_BACK,
    StartReason.NO_GAIN,
    StartReason.WAITED,
    StartReason.TRIAL,
    StartReason.WINDOW,
)
"""Such a batch has all that waited."""


def explain(stats: Stats, options: Options) -> str:
    """Return one sentence a line."""
    return "\n".join(_sentences(stats, options))


def _sentences(stats: Stats, options: Options) -> Iterator[str]:
    now = stats.since_configured()  # else figures of other options would be said of these
    if stats.total_batches:
        yield from _of_batches(now, options, has_changed=stats.configured is not None)
    else:
        has = "finished" if stats.running else "run"
        yield f"No batch has {has} yet, so there is nothing to report."
    if options.cache is not None and (stats.total_cached or stats.total_accepted):
        items = _count(stats.total_cached + stats.total_accepted, "item", "items")
        yield f"The cache or an equal item in flight has answered {stats.total_cached:,} of {items}."
    yield from _losses(stats, options)


def _of_batches(stats: Stats, options: Options, *, has_changed: bool) -> Iterator[str]:
    """Say what batches tell; of some options, only those that have ended since these were changed."""
    lengths = _length(stats, options) if not options.streams or knows_lengths(options) else iter(())
    if has_changed:  # lengths are those of all batches
        yield from lengths
        batches = _count(stats.total_batches, "batch has", "batches have")
        of_these = "; the following describes only those" if stats.total_batches else ""
        yield f"Since options were last changed, {batches} finished{of_these}."
    if options.continuous and stats.total_batches:
        yield from _steps(stats, options)
        return
    yield from _cost(stats, options)
    yield from lengths
    if stats.total_batches:
        yield from _size(stats, options)
    yield from _stages(stats, options)
    yield from _wait(stats, options)


def _steps(stats: Stats, options: Options) -> Iterator[str]:
    """Say how full the steps of batches are that are refilled, and what would fill them."""
    yield f"The median step took {short(stats.processing_time.percentile(50) * 1000)} ms."
    mean, most = stats.batch_size.mean, options.batch_size
    yield f"Steps had {mean:.1f} items on average, {_of_most(mean, most)}."
    if stats.fits_memory is not None and stats.fits_memory < most:
        yield _fits(stats.fits_memory)
    taken = stats.occupancy
    if taken is not None:
        yield f"In steps while calls waited, {taken:.0%} of the places were taken."
        if taken < _NEARLY_ALL and stats.total_batches >= _LEAST_BATCHES:
            yield _why_empty(options)
    yield from _waited(stats)


def _why_empty(options: Options) -> str:
    """Return why places are empty while calls wait."""
    if options.group_by is not None:
        return "Others were empty: only items with equal keys share a batch, and keys take turns."
    if options.max_joining is not None or options.max_joining_length is not None:
        return "Others were empty: no more items may join at one step."
    if options.max_batch_length is not None:
        return f"Others were empty, because of max_batch_length={options.max_batch_length}."
    if options.workers is not None:
        return "Others were empty: no item joins while another function waits for the worker."
    return "Others were empty: joining takes time, so it is better that several items join together."


def _stages(stats: Stats, options: Options) -> Iterator[str]:
    """Say which stage is the slowest, and what would help."""
    if not stats.stages or stats.total_batches < _LEAST_BATCHES:
        return
    means = {name: times.mean for name, times in stats.stages.items()}
    slowest = max(means, key=means.__getitem__)
    total = sum(means.values())
    share = means[slowest] / total if total else 1.0
    each = ", ".join(f"{name} {short(mean * 1000)} ms" for name, mean in means.items())
    if options.workers is not None:
        yield f"The stages of a batch take {each} on average, one after the other in the worker that has it."
        if total and means["function"] < _NEARLY_ALL * total:
            yield (
                f"A worker is in the function for {means['function'] / total:.0%} of that: another worker on "
                f"the same device can use the rest."
            )
        return
    yield (
        f"The stages of a batch take {each} on average, so batches follow each other as fast as {slowest} "
        f"allows."
    )
    if share > _NEARLY_ALL:
        yield "The other stages take so little time that overlapping saves next to nothing."
    elif slowest in _BESIDE:
        yield f"The function waits for {slowest}: a faster one, or one that does less, would help."


def _cost(stats: Stats, options: Options) -> Iterator[str]:
    """Say what a batch costs, and whether that is worth sharing."""
    learned = stats.learned
    if learned is None or learned.batch_ms is None or learned.item_ms is None:
        if stats.total_batches:
            yield f"The median batch took {short(stats.processing_time.percentile(50) * 1000)} ms."
            if options.batch_size > 1:
                yield _why_unknown(stats, options)
        return
    each = f"each item adds {short(learned.item_ms)} ms"
    if learned.length_ms is not None:
        each += f" plus {short(learned.length_ms)} ms for each unit of the longest item's length"
    if stats.total_copies:  # they take a part of that
        each += ", copies included"
    yield f"A batch costs {short(learned.batch_ms)} ms, and {each}."
    size = _most(stats, options)
    saved = _fixed_share(learned, 1) * (1 - 1 / size)
    is_of_items = stats.copies_percent <= _MANY_COPIES
    if stats.total_batches >= _LEAST_BATCHES and size > 1 and saved < _FELT and is_of_items:
        yield "Nearly all of that is the cost of the items, so batching saves almost nothing."


def _why_unknown(stats: Stats, options: Options) -> str:
    """Return why it is not known what a batch costs, and what an item."""
    if not (options.adaptive and options.timeout_ms):
        return (
            "The cost of a batch and of an item is not learned: that needs adaptive=True and timeout_ms "
            "above 0."
        )
    if stats.learned is not None and _of_other_sizes(stats) < _SOME:
        return "The cost of an item is not known: too few batches differed in size."
    if stats.learned is not None:
        return "The cost of an item is not known: batch times have not shown it so far."
    if not _has_worked(stats):
        return "The cost of a batch and of an item is not known: no item has succeeded."
    return "The cost of a batch and of an item is not known yet: too few calls have been answered."


def _of_other_sizes(stats: Stats) -> int:
    """Return how many batches had another size than most."""
    sizes = stats.batch_size
    usual = sizes.percentile(50)
    about = sizes.at_most(usual * (1 + _ABOUT)) - sizes.at_most(usual * (1 - _ABOUT) - 1e-9)
    return sizes.count - about


def _has_worked(stats: Stats) -> bool:
    return stats.total_failed < stats.total_processed


def _batch_ms(learned: Learned, size: float) -> float:
    """Return what a batch of `size` items of the usual length takes, as far as that is known."""
    each = (learned.item_ms or 0.0) + (learned.length_ms or 0.0) * learned.mean_length
    return (learned.batch_ms or 0.0) + each * size


def _fixed_share(learned: Learned, size: int) -> float:
    """Return the share of a batch of `size` items that does not depend on its items."""
    return (learned.batch_ms or 0.0) / _batch_ms(learned, size)


def _most(stats: Stats, options: Options) -> int:
    """Return the size of a full batch."""
    return min(size for size in (options.batch_size, stats.best_batch_size, stats.fits_memory) if size)


def _length(stats: Stats, options: Options) -> Iterator[str]:
    """Say whether length matters, and what padding costs."""
    if options.batch_size == 1:
        return
    if Choice.LENGTH in stats.chosen:
        yield from _by_length(stats)
    elif options.length is None and not knows_lengths(options):
        yield "Lengths are ignored, because length=None."
    elif not knows_lengths(options):
        yield from _looked_at(stats)
    elif stats.total_batches < _LEAST_BATCHES or not _has_worked(stats):
        return
    elif not (isinstance(options, ArrayOptions) or callable(options.length)):
        yield "Lengths only keep batches within max_batch_length; items run in order of arrival."
    elif stats.padding.waste_percent > _UNLIKE:
        yield (
            f"Items have run in order of arrival: padding took too little time for another order to pay off "
            f"({_padding(stats)})."
        )


def _looked_at(stats: Stats) -> Iterator[str]:
    """Say what batches that were looked at tell of lengths, if that is anything."""
    padding = stats.padding
    if padding.padded:
        if padding.batches >= _LOOKS and padding.waste_percent >= _UNLIKE:
            yield (
                f"Lengths were measured in {padding.batches:,} batches of several items: no sign that "
                f"another order would save time ({_padding(stats)})."
            )
        return
    # Of a batch that failed nothing is kept, and its parts are not looked at.
    whole = stats.total_batches - stats.total_divided - stats.closed.get(StartReason.RETRY, 0)
    is_felt = stats.processing_time.percentile(50) >= _SHORT_S
    if is_felt and whole >= _LEAST_BATCHES and _has_worked(stats):
        yield (
            "Not all items have a length that can be seen. If the function pads them, set length to a "
            "function that returns an item's length."
        )


def _by_length(stats: Stats) -> Iterator[str]:
    """Say whether items of like length share batches now, and how many batches were chosen so."""
    learned = stats.learned
    if learned is not None and (learned.length_ms is not None or not learned.uses_lengths):
        size = stats.batch_size.mean
        of_length = (learned.length_ms or 0.0) * learned.mean_length * size
        share = of_length / _batch_ms(learned, size) if of_length else 0.0
        if share > _FELT:
            yield (
                f"Length accounts for {share:.0%} of the time of a batch, so items of similar length share a "
                "batch where padding would take much of it."
            )
        else:
            yield "Length no longer takes noticeable time, so items run in order of arrival."
    batches = _count(stats.chosen[Choice.LENGTH], "batch has", "batches have")
    yield f"So far, {batches} been chosen by length ({_padding(stats)})."


def _padding(stats: Stats) -> str:
    return f"padded to their longest item, batches were {stats.padding.waste_percent:.0f}% padding"


def _of_most(mean: float, most: int, full: str = "") -> str:
    """Say how many items are possible; batches may have begun before `batch_size` was changed."""
    if mean > most:
        return f"as some began before batch_size was {most}"
    return f"out of a possible {most}{full}"


def _size(stats: Stats, options: Options) -> Iterator[str]:
    """Say how large batches are, and what would make them better."""
    most, mean, fits, best = (
        options.batch_size,
        stats.batch_size.mean,
        stats.fits_memory,
        stats.best_batch_size,
    )
    full = stats.closed.get(StartReason.FULL, 0) / stats.total_batches
    # Of those that started as enough items waited, some took fewer: the others would have been late, say.
    had_most = 1.0 - stats.batch_size.at_most(most - 1) / max(stats.batch_size.count, 1)
    of_most = _of_most(mean, most, f"; {had_most:.0%} started full")
    yield f"Batches have {mean:.1f} items on average, {of_most}."
    if stats.total_batches >= _LEAST_BATCHES and stats.copies_percent > _MANY_COPIES:
        yield (
            f"{stats.copies_percent:.0f}% of what the function was given were copies, to fill batches up to "
            f"one of batch_sizes: sizes nearer to the number of items that come would save their time."
        )
    if fits is not None and fits < most:
        yield _fits(fits)
    if best is not None and (fits is None or best <= fits):
        size = _count(best, "item", "items")
        yield f"Batches of {size} seem to work best, so larger ones are only tried now and then."
    if best is not None or stats.total_batches < _LEAST_BATCHES:
        return
    apart = stats.apart_time / stats.processing_time.sum if stats.apart_time else 0.0
    limit = options.max_batch_length
    if apart > _FELT:
        yield _why_apart(apart, options)
    elif _came(stats) < _ALONE and most > 1 and _has_all(stats, options):
        yield "Calls have come one at a time, so there was almost nothing to batch."
    elif (
        limit is not None and fits is None and full > _MOST_OF_THEM and mean < most / 2 and not _losing(stats)
    ):
        yield f"Most batches fill up before they reach {most} items, because of max_batch_length={limit}."
    elif mean > most / 2 and full > _MOST_OF_THEM and _has_room_for_more(stats, options):
        yield from _larger(stats, most)


def _fits(items: int) -> str:
    return f"Batches have at most {_count(items, 'item', 'items')}, because larger ones ran out of memory."


def _losing(stats: Stats) -> bool:
    """Whether items have been late, or would have been: then deadlines say how large batches are."""
    late = stats.total_expired or stats.total_refused or stats.total_late
    return bool(late or StartReason.DEADLINE in stats.closed)


def _has_room_for_more(stats: Stats, options: Options) -> bool:
    """Whether a batch of twice the size would have been full too, and no other option stands against it."""
    if options.streams:  # a batch would take as long as the longest of more items
        return False
    bounds = stats.fits_memory is None and options.max_batch_length is None and not _losing(stats)
    waiting = options.max_queue_size is None or options.max_queue_size >= _TWICE * options.batch_size
    were_left = stats.wait.mean > _BEHIND * stats.processing_time.mean
    return bounds and waiting and were_left and _would_be_on_time(stats, options)


def _would_be_on_time(stats: Stats, options: Options) -> bool:
    """Whether a call could wait for a batch of twice the size, and run in the next one."""
    takes_ms = 0.0 if stats.learned is None else _batch_ms(stats.learned, _TWICE * options.batch_size)
    return options.default_deadline_ms is None or 2 * takes_ms < options.default_deadline_ms


def _came(stats: Stats) -> float:
    """Return how many items have come for each batch, with those that have been in none."""
    lost = stats.total_rejected + stats.total_refused + stats.total_expired + stats.total_cancelled
    return stats.batch_size.mean + (stats.total_cached + lost) / stats.total_batches


def _has_all(stats: Stats, options: Options) -> bool:
    """Whether most batches had all items that waited, and items that wait can meet."""
    waits = options.max_concurrent_batches == 1 or bool(options.timeout_ms)
    return (
        waits
        and sum(stats.closed.get(reason, 0) for reason in _WITH_ALL) > _MOST_OF_THEM * stats.total_batches
    )


def _why_apart(apart: float, options: Options) -> str:
    """Return by what items that wait are kept apart for a share of the time."""
    other = "another group_by key; with fewer keys"
    if options.group_by is None:
        arrays = isinstance(options, ArrayOptions)
        other = "another array layout; with fewer layouts" if arrays else "other columns; with equal columns"
    return (
        f"For {apart:.0%} of its running time, the function ran batches with room for queued items, but "
        f"those had {other}, they would share a batch."
    )


def _larger(stats: Stats, most: int) -> Iterator[str]:
    """Say whether larger batches would share more."""
    learned = stats.learned
    if learned is None or learned.batch_ms is None:
        return
    share = _fixed_share(learned, most)
    if share > _COSTLY:
        yield (
            f"{share:.0%} of a full batch's time is a fixed cost: a larger batch_size would spread it over "
            "more items."
        )


def _wait(stats: Stats, options: Options) -> Iterator[str]:
    """Say how long batches are held back."""
    learned = stats.learned
    timeout_ms = DEFAULT_S * 1000 if isinstance(options.timeout_ms, str) else options.timeout_ms
    if options.batch_size == 1:
        pass
    elif not timeout_ms:
        yield "Batches never wait for more calls, because timeout_ms=0."
    elif learned is None:
        yield f"An incomplete batch waits until its oldest item is {short(timeout_ms)} ms old."
    elif not learned.waits:
        # Else they are full, or all callers are back.
        reason = ": that would cost more than it saves" if StartReason.NO_GAIN in stats.closed else ""
        yield f"Batches do not wait for more calls now{reason}."
    else:
        others = "or for the rest of a burst"
        if options.max_concurrent_batches > 1:
            others = "for the rest of a burst, or so that batches start at even intervals"
        yield (
            f"Batches wait {short(learned.wait_ms)} ms for more calls on average: for callers that were just "
            f"answered and call again at once, {others}."
        )
    yield from _waited(stats)


def _waited(stats: Stats) -> Iterator[str]:
    if stats.wait.count:
        mean_ms, long_ms = stats.wait.mean * 1000, stats.wait.percentile(99) * 1000
        mean, long = short(mean_ms), short(long_ms)
        yield f"Items have waited {mean} ms on average, and 1% of them {long} ms or longer."


def _losses(stats: Stats, options: Options) -> Iterator[str]:
    """Say which items failed, or were not run."""
    if stats.total_divided:
        batches = _count(stats.total_divided, "batch failed and was", "batches failed and were")
        memory = "because memory ran out, or " if stats.fits_memory is not None else ""
        blames_items = stats.batch_error is None
        why = "to find the items that fail" if blames_items else "because the function raised an error"
        yield f"{batches} retried in halves {memory}{why}."
    if stats.batch_error is not None:
        yield (
            "Some batches failed although each of their items succeeded when retried, so the function fails "
            f"only on several items together; the last such error: {stats.batch_error}"
        )
        if options.batch_size > 1:
            yield (
                "Make the function accept any items together, let only compatible items share a batch "
                "(group_by), or set batch_size=1."
            )
    if stats.isolation_paused and options.isolate_errors:
        yield (
            "No item of the last failed batch succeeded, as in an outage: until something succeeds, failed "
            "batches are not retried."
        )
    if stats.total_failed:
        yield f"{stats.total_failed:,} of {_count(stats.total_processed, 'item', 'items')} failed."
    yield from _misses(stats, options)
    if stats.total_rejected:
        rejected = _count(stats.total_rejected, "item was", "items were")
        yield f"{rejected} rejected, because the queue had no room."


def _misses(stats: Stats, options: Options) -> Iterator[str]:
    """Say which items missed their deadlines, or would have."""
    if stats.total_expired > stats.total_given_up:
        late = _count(stats.total_expired - stats.total_given_up, "item", "items")
        yield f"{late} missed the deadline before a batch started."
    if stats.total_late:
        yield _late(stats, options)
    if stats.total_given_up:
        given_up = _count(stats.total_given_up, "item was", "items were")
        yield f"{given_up} dropped while waiting, because too little time was left before the deadline."
    if stats.total_refused:
        refused = _count(stats.total_refused, "item was", "items were")
        yield f"{refused} refused on arrival, because the deadline could not have been met."


def _late(stats: Stats, options: Options) -> str:
    """Say how many items ran too long; and if that is a good part of them, what would help."""
    late = _count(stats.total_late, "item was", "items were")
    told = f"{late} still running when the deadline passed, so the results reached no caller"
    if options.streams:
        told = f"{late} still running when the deadline passed, and got no more pieces"
    if stats.total_late < _MANY_LATE * stats.total_processed:
        return f"{told}."
    if options.streams:  # how long they take depends on their callers, and a refilled batch has no end
        return f"{told}: a longer deadline_ms, or fewer steps, would help."
    mean_ms, long_ms = stats.processing_time.mean * 1000, stats.processing_time.percentile(99) * 1000
    return (
        f"{told}: batches take {short(mean_ms)} ms on average, and 1% of them {short(long_ms)} ms or longer; "
        f"a longer deadline_ms, or shorter batches, would help."
    )


def _count(number: int, one: str, several: str) -> str:
    """Return a number, and what it counts."""
    return f"{number:,} {one if number == 1 else several}"
