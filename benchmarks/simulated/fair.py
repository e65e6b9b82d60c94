"""Large calls, and tenants (`fair_by`), that share a queue, simulated, beside what each has alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from random import Random
from typing import Any

from batched._core.batcher import with_tenants
from batched._core.call import Call
from batched._core.options import Options
from batched._core.queue import Queue
from batched._drivers.manual_clock import ManualDriver
from benchmarks.kit.measure import Effort
from benchmarks.kit.row import COUNT, SHARE, Comparison, Goal, Row
from benchmarks.kit.turns import Contender, Measure, Turns

_BATCH, _LIST, _SHORT = 32, 3_200, 9
_FIXED_S, _EACH_S = 20e-3, 1e-3
_FULL_S = _FIXED_S + _BATCH * _EACH_S
_QUIET = 9  # tenants
_RATE = (
    0.03 * _BATCH / _FULL_S
)  # of each: together a quarter of the capacity, and another sends 100 times that
_FLOOD = 100

_BATCHES_ABOVE = Comparison("", "", lambda ours, alone: ours - alone)


def _new(*, fair: bool) -> ManualDriver:
    options = Options(batch_size=_BATCH, timeout_ms=0, adaptive=False)
    return ManualDriver(options, with_tenants(Queue) if fair else Queue)


def _call(size: int, now: float, tenant: int = 0) -> Call:
    call = Call().begin(id, None, size, size > 1, now)
    call.tenant = tenant
    return call


def _next(driver: ManualDriver, now: float) -> tuple[dict[Call, int], list[Call], float]:
    """Run the next batch; return the items of its calls, the calls that are done, and when it ends."""
    driver.delay(now)
    batch = driver.pop(now)
    now += _FIXED_S + _EACH_S * batch.size
    shares: dict[Call, int] = {}
    for call, start, stop in batch.slices:
        shares[call] = shares.get(call, 0) + stop - start
    return shares, driver.finish(batch, now), now


def _list_beside_a_call(short: int) -> dict[str, float]:
    """Return in which batch a call beside a list is through, and the items a second until the list is.

    All of them together are always as many.
    """
    driver = _new(fair=False)
    now = 0.0
    driver.push(long := _call(_LIST + _SHORT - short, now))
    _, _, now = _next(driver, now)
    beside = _call(short, now) if short else None
    if beside is not None:
        driver.push(beside)
    batches = through = 0
    while long.missing:
        _, done, now = _next(driver, now)
        batches += 1
        if beside in done:
            through = batches
    return {"through": float(through), "rate": (_LIST + _SHORT) / now}


def _tenants(*, flood: bool, seconds: float) -> dict[str, float]:
    """Return the p99 of quiet tenants, in full batches, beside one that floods the queue or without it."""
    random = Random(7)  # noqa: S311  no secret
    tenants = range(_QUIET + flood)
    rates = [_FLOOD * _RATE if tenant == _QUIET else _RATE for tenant in tenants]
    following = [random.expovariate(rate) for rate in rates]
    driver = _new(fair=True)
    now = 0.0
    quiet: list[float] = []
    while now < seconds:
        for tenant in tenants:
            while following[tenant] <= now:
                driver.push(_call(1, following[tenant], tenant))
                following[tenant] += random.expovariate(rates[tenant])
        if not driver.queue.items:
            now = min(following)
            continue
        _, done, now = _next(driver, now)
        quiet += [now - call.arrived for call in done if call.tenant != _QUIET]
    return {"p99": sorted(quiet)[int(0.99 * len(quiet))] / _FULL_S}


def _greedy(batches: int) -> dict[str, float]:
    """Return Jain's index of what tenants have had that all want more, one of them the most by far."""
    random = Random(11)  # noqa: S311  no secret
    driver = _new(fair=True)
    served = [0] * 10
    waiting = [0] * 10
    now = 0.0
    for _ in range(batches):
        for tenant in range(10):
            wanted = 1000 if tenant == 0 else 40
            while waiting[tenant] < wanted:
                size = random.choice((1, 1, 1, 4, 8))
                driver.push(_call(size, now, tenant))
                waiting[tenant] += size
        shares, _, now = _next(driver, now)
        for call, items in shares.items():
            served[call.tenant] += items
            waiting[call.tenant] -= items
    return {"Jain": sum(served) ** 2 / (len(served) * sum(each * each for each in served)), "even": 1.0}


def _contender(simulate: Callable[[Effort], dict[str, float]]) -> Contender:
    @contextmanager
    def contender(effort: Effort) -> Iterator[Measure]:
        yield lambda: simulate(effort)

    return contender


def _turns(**contenders: Callable[[Effort], dict[str, float]]) -> Turns:
    """Return one round: a simulation gives the same figures every time."""
    named: Any = {name: _contender(simulate) for name, simulate in contenders.items()}
    return Turns(named, rounds=1)


_LISTS = _turns(ours=lambda _: _list_beside_a_call(_SHORT), alone=lambda _: _list_beside_a_call(0))
_TENANTS = _turns(
    ours=lambda effort: _tenants(flood=True, seconds=effort.of(500, 20)),
    alone=lambda effort: _tenants(flood=False, seconds=effort.of(500, 20)),
)
_JAIN = _turns(ours=lambda effort: _greedy(effort.of(2_000, 100)))

ROWS = (
    Row(
        "fair: 9 items beside a list of 3,200",
        "batches until a call of 9 items is through, beside a list of 3,200",
        _LISTS,
        "alone through",
        _BATCHES_ABOVE,
        Goal(3.0),
        "ours through",
    ),
    Row(
        "fair: the list beside 9 items",
        "items a second until the list of 3,200 is through, with 9 items beside it",
        _LISTS,
        "alone rate",
        SHARE,
        Goal(0.999, at_least=True),
        "ours rate",
    ),
    Row(
        "fair: 9 quiet tenants beside a flood",
        "p99 of 9 quiet tenants beside one that sends 100 times as much, in full batches above alone",
        _TENANTS,
        "alone p99",
        _BATCHES_ABOVE,
        Goal(1.5),
        "ours p99",
    ),
    Row(
        "fair: Jain's index",
        "Jain's index of the items of ten tenants that want more than they get",
        _JAIN,
        "ours even",
        COUNT,
        Goal(0.95, at_least=True),
        "ours Jain",
    ),
)
