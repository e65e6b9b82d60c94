"""Each sentence of `explain` and each figure of the stats, compared with what is true of a workload."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import fmean, median

from batched._core.options import knows_lengths
from tests.kit.workload import Run, Workload

NEAR = 0.2  # of the time of a usual batch: the costs that are told are so near
WITHIN = 1.1  # percentiles of times are within 9 %
LAST = 0.006  # three digits are told


@dataclass
class Truth:
    """What the function of a workload costs, in milliseconds; None where no straight line explains it."""

    fixed: float | None = None
    each: float | None = None
    length: float | None = None


def check(workload: Workload, truth: Truth) -> list[str]:
    """Check all that is said of a workload; return it."""
    said = workload.said()
    checks = _Checks(workload, truth)
    for sentence in said:
        fitting = [
            (found, one)
            for pattern, one in checks.sentences.items()
            if (found := re.fullmatch(pattern, sentence))
        ]
        assert fitting, f"no truth is known for: {sentence}"
        for found, one in fitting:
            assert one(*found.groups()) is not False, f"{sentence}\n{workload.stats()}"
    checks.figures(said)
    return said


def number(text: str) -> float:
    """Return the number that a sentence tells."""
    return float(text.replace(",", ""))


def is_near(text: str, value: float, within: float = LAST) -> bool:
    """Whether a number that is told is this value, but for its last digit."""
    return abs(number(text) - value) <= within * abs(value) + 1e-6


class _Checks:
    """What must be true where a sentence is said, by the pattern of the sentence."""

    def __init__(self, workload: Workload, truth: Truth) -> None:
        self.workload, self.truth = workload, truth
        self.stats, self.options = workload.stats(), workload.options
        self.runs = workload.latest
        self.all_runs = workload.runs
        self.sentences: dict[str, Callable[..., object]] = {
            r"No batch has run yet, so there is nothing to report\.": lambda: not self.all_runs,
            r"No batch has finished yet, so there is nothing to report\.": lambda: not self.all_runs,
            r"Since options were last changed, (\S+) batch(?:es have| has) finished[^(]*\.": (
                lambda count: number(count) == len(self.runs) and workload.changes
            ),
            r"The median batch took (\S+) ms\.": self.half,
            r"A batch costs (\S+) ms, and each item adds (\S+) ms\.": self.cost,
            r"A batch costs (\S+) ms, and each item adds (\S+) ms plus (\S+) ms for each unit .+\.": self.cost_of_length,  # noqa: E501  one sentence
            r"The cost of an item is not known: too few batches differed in size\.": (
                lambda: self.other_sizes() < 8
            ),
            r"The cost of an item is not known: batch times have not shown it so far\.": (
                lambda: self.stats.learned is not None and self.stats.learned.batch_ms is None
            ),
            r"The cost of a batch and of an item is not learned: .+\.": (
                lambda: not (self.options.adaptive and self.options.timeout_ms)
            ),
            r"The cost of a batch and of an item is not known: no item has succeeded\.": lambda: all(
                run.failed for run in self.all_runs
            ),
            r"The cost of a batch and of an item is not known yet: too few calls have been answered\.": (
                lambda: self.stats.learned is None
            ),
            r"Nearly all of that is the cost of the items, so batching saves almost nothing\.": self.is_linear,  # noqa: E501  one sentence
            r"Lengths are ignored, because length=None\.": lambda: self.options.length is None,
            r"Not all items have a length that can be seen\. .+": lambda: (
                self.median_s() > 180e-6
                and any(type(item) is not str for run in self.all_runs for item in run.items)
            ),
            r"Lengths were measured in (\S+) batches of several items: no sign that another order would save "
            r"time \(padded to their longest item, batches were (\S+)% padding\)\.": (
                lambda count, padding: (
                    number(count) == self.looked()[0]
                    and abs(number(padding) - self.looked()[1]) < 0.6
                    and not truth.length
                )
            ),
            r"Length accounts for (\S+)% of the time of a batch, so .+\.": self.share_of_length,
            r"Length no longer takes noticeable time, so items run in order of arrival\.": lambda: (
                not truth.length
            ),
            r"So far, (\S+) batch(?:es)? ha(?:s|ve) been chosen by length .+\.": lambda count: (
                number(count) > 0
            ),
            r"Batches have (\S+) items on average, out of a possible (\S+); (\S+)% started full\.": self.sizes,  # noqa: E501  one sentence
            r"Batches have (\S+) items on average, as some began before batch_size was (\S+)\.": (
                lambda mean, most: number(mean) > number(most) == self.options.batch_size and workload.changes
            ),
            r"Batches have at most (\S+) items?, because larger ones ran out of memory\.": lambda most: (
                number(most) == self.stats.fits_memory < self.options.batch_size
                and any(run.failed and run.size > number(most) for run in self.all_runs)
            ),
            r"Batches of (\S+) items? seem to work best, so larger ones are only tried now and then\.": (
                lambda size: (
                    number(size) == self.stats.best_batch_size
                    and sum(run.size > number(size) for run in self.runs[-40:]) < 10
                )
            ),
            r"For (\S+)% of its running time, the function ran .+": lambda share: (
                knows_lengths(self.options) or number(share) > 0
            ),
            r"Calls have come one at a time, so there was almost nothing to batch\.": (
                lambda: workload.accepted + workload.rejected + workload.refused < 1.1 * len(self.all_runs)
            ),
            r"Most batches fill up before they reach (\S+) items, because of max_batch_length=(\S+)\.": (
                lambda size, limit: (
                    number(size) == self.options.batch_size and number(limit) == self.options.max_batch_length
                )
            ),
            r"(\S+)% of a full batch's time is a fixed cost: a larger batch_size would .+\.": self.larger,
            r"Batches never wait for more calls, because timeout_ms=0\.": lambda: not self.options.timeout_ms,
            r"An incomplete batch waits until its oldest item is (\S+) ms old\.": (
                lambda ms: number(ms) == self.timeout_ms() and self.stats.learned is None
            ),
            r"Batches do not wait for more calls now(?:: that would cost more than it saves)?\.": (
                lambda: not any(run.held_s for run in self.all_runs[6:][-3:])
            ),
            r"Batches wait (\S+) ms for more calls on average: for callers .+\.": (
                lambda ms: 0 < number(ms) <= 1000 * max(run.held_s for run in self.all_runs[-80:])
            ),
            r"Items have waited (\S+) ms on average, and 1% of them (\S+) ms or longer\.": self.waits,
            r"Some batches failed although each of their items succeeded when retried, .+": lambda: (
                self.alone_only()
            ),
            r"Make the function accept any items together, .+ or set batch_size=1\.": lambda: (
                self.alone_only()
            ),
            r"(\S+) batch(?:es)? failed and (?:was|were) retried in halves .+\.": lambda count: (
                number(count) == self.stats.total_divided
            ),
            r"No item of the last failed batch succeeded, .+\.": lambda: self.all_runs[-1].failed,
            r"(\S+) of (\S+) items? failed\.": lambda failed, _: (
                number(failed) == self.stats.total_failed > 0
            ),
            r"(\S+) items? missed the deadline before a batch started\.": lambda late: (
                number(late) == workload.late
            ),
            r"(\S+) items? (?:was|were) still running when the deadline passed, .+\.": lambda late: (
                number(late) == self.stats.total_late > 0
            ),
            r"(\S+) items? (?:was|were) dropped while waiting, .+\.": lambda late: (
                number(late) == workload.given_up
            ),
            r"(\S+) items? (?:was|were) refused on arrival, .+\.": lambda refused: (
                number(refused) == workload.refused
            ),
            r"(\S+) items? (?:was|were) rejected, because the queue had no room\.": lambda count: (
                number(count) == workload.rejected
            ),
        }

    # -- sentences with figures ---------------------------------------------------------------------------

    def median_s(self) -> float:
        return median(run.seconds for run in self.runs)

    def half(self, ms: str) -> bool:
        times = sorted(1000 * run.seconds for run in self.runs)
        least, most = times[(len(times) - 1) // 2], times[len(times) // 2]
        return least / WITHIN < number(ms) < most * WITHIN

    def timeout_ms(self) -> float:
        """Return how old an item gets before its batch starts, where nothing is learned."""
        timeout_ms = self.options.timeout_ms
        return 5.0 if timeout_ms == "auto" else timeout_ms

    def other_sizes(self) -> int:
        """Return how many batches had another size than most."""
        usual = sorted(run.size for run in self.runs)[(len(self.runs) - 1) // 2]
        return sum(abs(run.size - usual) > 0.1 * usual for run in self.runs)

    def usual(self) -> tuple[float, float]:
        """Return the size and the milliseconds of a usual batch of late."""
        runs = [run for run in self.all_runs if not run.failed][-15:]
        size, truth = fmean(run.size for run in runs), self.truth
        if truth.fixed is None or truth.each is None:
            return median(run.size for run in runs), 1000 * median(run.seconds for run in runs)
        longest = fmean(max(map(len, run.items)) for run in runs) if truth.length else 0.0
        return size, truth.fixed + (truth.each + (truth.length or 0.0) * longest) * size

    def cost(self, batch: str, item: str) -> bool:
        size, ms = self.usual()
        fixed, each = number(batch), number(item)
        if abs(fixed + each * size - ms) > NEAR * ms:
            return False
        if self.truth.fixed is None or self.truth.each is None:
            return True
        return abs(fixed - self.truth.fixed) < NEAR * ms and abs(each - self.truth.each) * size < NEAR * ms

    def cost_of_length(self, batch: str, item: str, length: str) -> bool:
        size, ms = self.usual()
        truth = self.truth
        assert truth.fixed is not None
        assert truth.each is not None
        assert truth.length is not None
        longest = fmean(max(map(len, run.items)) for run in self.all_runs[-15:])
        return (
            abs(number(batch) - truth.fixed) < NEAR * ms
            and abs(number(item) - truth.each) * size < NEAR * ms
            and abs(number(length) - truth.length) * longest * size < NEAR * ms
        )

    def is_linear(self) -> bool:
        truth = self.truth
        return truth.fixed is not None and truth.each is not None and truth.fixed < 0.2 * truth.each

    def share_of_length(self, percent: str) -> bool:
        return self.truth.length is not None and number(percent) > 5

    def alone_only(self) -> bool:
        """Whether batches failed, and none of their items alone."""
        return any(run.failed for run in self.all_runs) and not any(
            run.failed for run in self.all_runs if run.size == 1
        )

    def looked(self) -> tuple[int, float]:
        """Return how many batches of several items were looked at, and their padding in percent."""
        runs = [run for run in self.all_runs if run.looked_at]
        real = sum(sum(map(len, run.items)) for run in runs)
        padded = sum(max(map(len, run.items)) * run.size for run in runs)
        return sum(run.size > 1 for run in runs), 100 * (1 - real / padded) if padded else 0.0

    def sizes(self, mean: str, most: str, full: str) -> bool:
        runs = self.runs
        return (
            abs(number(mean) - fmean(run.size for run in runs)) < 0.051
            and number(most) == self.options.batch_size >= max(run.size for run in runs)
            and abs(number(full) - 100 * fmean(run.size == number(most) for run in runs)) < 0.51
        )

    def larger(self, percent: str) -> bool:
        truth, options = self.truth, self.options
        assert truth.fixed is not None
        assert truth.each is not None
        full = truth.fixed + truth.each * options.batch_size
        twice = full + truth.each * options.batch_size
        assert abs(number(percent) - 100 * truth.fixed / full) < 100 * NEAR
        assert not self.workload.late
        assert not self.workload.refused
        assert not self.workload.given_up
        assert options.default_deadline_ms is None or 2 * twice < options.default_deadline_ms * WITHIN
        assert options.max_queue_size is None or options.max_queue_size >= 2 * options.batch_size
        assert options.max_batch_length is None
        assert self.stats.fits_memory is None
        assert self.stats.best_batch_size is None
        return fmean(self.all_waits(self.runs)) > 0.5 * fmean(run.seconds for run in self.runs)

    def all_waits(self, runs: Sequence[Run]) -> list[float]:
        return [wait for run in runs for wait in run.waits_s]

    def waits(self, mean: str, long: str) -> bool:
        if self.stats.total_divided:  # of some, the run that counts is a later one
            return True
        waits = sorted(self.all_waits(self.runs))
        rank = int(0.99 * (len(waits) - 1))
        least, most = 1000 * waits[rank] / WITHIN, 1000 * waits[min(rank + 2, len(waits) - 1)] * WITHIN
        return is_near(mean, 1000 * fmean(waits)) and least - 1e-3 <= number(long) <= most + 1e-3

    # -- figures ------------------------------------------------------------------------------------------

    def figures(self, said: list[str]) -> None:
        """Check the stats, and that no sentence says what they leave open, nor the reverse."""
        stats, workload, runs = self.stats, self.workload, self.all_runs
        assert stats.total_batches == len(runs) == sum(stats.closed.values())
        assert stats.total_accepted == workload.accepted
        assert stats.total_refused == workload.refused
        assert stats.total_rejected == workload.rejected
        assert stats.total_given_up == workload.given_up
        assert stats.total_expired == workload.late + workload.given_up
        assert stats.total_cancelled == workload.left
        if runs:
            assert stats.batch_size.max == max(run.size for run in runs)
            assert abs(stats.batch_size.mean - fmean(run.size for run in runs)) < 1e-9
            assert abs(stats.processing_time.mean - fmean(run.seconds for run in runs)) < 1e-9
        self._learned(" ".join(said))

    def _learned(self, said: str) -> None:
        learned, printed = self.stats.learned, str(self.stats)
        if learned is None:
            assert "learned" not in printed
            assert "A batch costs" not in said
            return
        (line,) = [line for line in printed.splitlines() if line.startswith("learned")]
        if learned.batch_ms is None:
            assert learned.item_ms is None
            assert learned.length_ms is None
            assert "cost per batch and per item not known" in line
            assert "ms per batch" not in line
            assert "A batch costs" not in said
        elif self.options.batch_size > 1:
            found = re.search(r"(\S+) ms per batch \+ (\S+) ms per item", line)
            assert found is not None
            assert f"A batch costs {found[1]} ms, and each item adds {found[2]} ms" in said
            assert learned.length_ms is not None or self.cost(*found.groups())
        if learned.capacity is not None and self.truth.fixed is not None and not self.truth.length:
            most = min(
                self.options.batch_size, self.stats.best_batch_size or 9999, self.stats.fits_memory or 9999
            )
            true = 1000 * most / (self.truth.fixed + (self.truth.each or 0.0) * most)
            assert true / 1.3 < learned.capacity < true * 1.3
