"""Several workers of one function, one clock of its own: what callers get from a window.

The workers drive the shipped scheduler as its threads do: one of those that are free looks for the next
batch, and sleeps until it is due, or until as many calls have come as the window waits for; the others wait
for their turn. A batch that ends has it look again.
"""

from __future__ import annotations

import heapq
import math
from itertools import count
from random import Random
from typing import Any

from batched._core.batch import Batch
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from batched._features.best_size import BestSizes
from benchmarks.kit.features import use_window
from benchmarks.simulated.processes import Traffic
from benchmarks.simulated.simulation import Outcome, Service

__all__ = ["simulate_several"]


def simulate_several(  # noqa: PLR0913  what a run depends on
    options: Options,
    traffic: Traffic,
    service: Service,
    *,
    calls: int,
    skip: int = 0,
    late_s: float = 0.0,
    seed: int = 0,
    window: Any = None,
) -> Outcome:
    """Serve until `calls` calls are answered after the first `skip`; timers wake a worker `late_s` late.

    There are as many workers as batches may run at once. A `window` takes the place of the options' own.
    """
    driver = ManualDriver(options, without=(BestSizes,))
    batcher = driver.batcher
    if window is not None:
        use_window(batcher, window)
    random = Random(seed)  # noqa: S311  no secret
    running: list[tuple[float, int, Batch]] = []
    order = count()
    latencies: list[float] = []
    now = 0.0
    batches = items = answered = awaited = 0
    until = -math.inf  # when to look again, if not as many as `awaited` have come, and no batch has ended
    while len(latencies) < calls:
        ends = running[0][0] if running else math.inf
        comes = traffic.time()
        is_free = len(running) < options.max_concurrent_batches
        looks = until if is_free else math.inf
        if min(comes, ends, looks) == math.inf:
            break
        if comes <= now or (comes <= ends and comes < looks):
            now = max(now, comes)
            batcher.arrive(traffic.call())
            awaited -= 1
            if awaited <= 0:
                until = -math.inf
        elif ends <= now or ends < looks:
            now, _, batch = heapq.heappop(running)
            for call in driver.finish(batch, now):
                answered += 1
                if answered > skip:
                    latencies.append(now - call.arrived)
                traffic.answer(call, now)
            until = -math.inf
        else:
            now = max(now, looks)
            delay = driver.delay(now)
            if delay == 0.0:
                batch = driver.pop(now)
                seconds = service.seconds(batch.size) * (1 + service.noise * random.uniform(-1, 1))
                heapq.heappush(running, (now + seconds, next(order), batch))
                batches += 1
                items += batch.size
                continue
            until = math.inf if delay is None else now + delay + late_s
            awaited = batcher.wake_after or 1
    return Outcome(latencies, batches, items)
