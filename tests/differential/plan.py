"""One run, drawn from its seed alone: the options, the faults, the callers and what each caller asks.

An item is a number. Everything about an item follows from its number: which fault it has, its length, its
group and its answer. So equal items are equal in all, and the answer of an item is known without a batch.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from tests.kit.optional import HAS_TORCH

FAULTS = ("returned", "raised", "fatal", "short", "nothing", "unmeasured", "ungrouped", "unkeyed")
"""What can be wrong with an item.

The function returns an exception for it; raises an `Exception`; raises something else; returns too few
results; returns None; or `length`, `group_by` or `cache_key` raise.
"""

_KINDS = 16  # numbers of one serial: one for each fault, the others without fault
ENDLESS = 1_000_000
"""More pieces than any consumer takes."""


def number_of(serial: int, fault: str | None) -> int:
    """Return the number of an item."""
    return serial * _KINDS + (_KINDS - 1 if fault is None else FAULTS.index(fault))


def serial_of(number: int) -> int:
    """Return what all but the fault of an item follows from."""
    return number // _KINDS


def length_of(number: int) -> int:
    """Return how long an item is: few are much longer than the others."""
    serial = serial_of(number)
    return 50 if serial % 37 == 5 else serial % 9


def pieces_of(number: int) -> int:
    """Return how many pieces an item streams."""
    serial = serial_of(number)
    return ENDLESS if serial % 13 == 7 else serial % 4


@dataclass(frozen=True)
class Ask:
    """One call of one caller."""

    way: str
    """The method to call: "call", "acall", "submit", "map", "amap", "stream" or "astream"."""
    elements: tuple[tuple[int, ...], ...]
    """The items: of arrays, the rows of each call; else tuples of one."""
    many: bool
    """Whether the items are passed as a list."""
    instance: int = 0
    second: bool = False
    """Whether the second column is passed."""
    by_name: bool = False
    options: tuple[tuple[str, Any], ...] = ()
    chained: bool = False
    """Whether `options` is called once for each option."""
    cancel_s: float | None = None
    """When the caller leaves, in seconds after it has asked."""
    take: int | None = None
    """How many answers or pieces the consumer takes before it leaves."""
    drops: bool = False
    """Whether a consumer that leaves does so by dropping the iterator."""
    pause_s: float = 0.0
    """How long the caller does nothing before it asks."""
    slow_s: float = 0.0
    """How long the consumer, or an asynchronous source, does nothing now and then."""
    breaks: bool = False
    """Whether the source of a map raises after its last item."""
    layout: tuple[str, str, int] = ("numpy", "int64", 0)
    """Of arrays: the library, the type of numbers, and how many numbers more than one each place has."""
    scribbles: bool = False
    """Whether the caller changes its arrays as soon as it may."""

    @property
    def size(self) -> int:
        """How many items are asked for."""
        return sum(map(len, self.elements))

    def option(self, name: str) -> Any:
        """Return an option of this call, None by default."""
        return dict(self.options).get(name)


@dataclass(frozen=True)
class Plan:
    """One run."""

    seed: int
    drive: str
    """"thread", "aio" (an `async def`) or "aio-plain"."""
    shape: str
    """"list", "columns", "arrays" or "stream"."""
    awaits: bool
    """Whether the batch function is an `async def`."""
    binding: str
    """"function", "method", "classmethod", "staticmethod" or "callable"."""
    options: dict[str, Any]
    """By name; functions and caches by what they are."""
    keys: int
    """How many groups there are."""
    outputs: str
    """What the function returns its results as."""
    clears: bool
    """Whether the function changes what it was given."""
    memory: int | None
    """The most items that fit into memory."""
    faults: tuple[str, ...]
    fault_rate: float
    delays: tuple[float, ...]
    """How long batches take, in seconds."""
    spread: int
    """How many serials there are."""
    layouts: tuple[tuple[str, str, int], ...]
    threads: int
    loops: tuple[int, ...]
    """The number of tasks of each loop."""
    loop_kinds: tuple[str, ...]
    leaving: tuple[tuple[str, float], ...]
    """How each loop ends ("finish", "leave" its tasks to be cancelled, "abandon" them), and when."""
    asks: int
    """How many calls each caller makes."""
    configures: bool
    reads_stats: bool
    collects: bool
    """Whether the garbage collector runs all the time."""
    ending: str
    """"shutdown", "cancel", "with" or "drop"."""
    ends_after_s: float | None
    """When it is shut down; None is after all callers."""
    switch_s: float
    stages: tuple[str, ...]
    """Which of "prepare" and "finish" are given."""
    main_stage: str
    """The stage that has the faults and the answers: "prepare", "function" or "finish"."""
    mix: str
    """"everything", or for many calls in a short time: "singles" or "lists" only, and nothing else of it."""
    shares_workers: bool
    """Whether the workers are those of a `batched.Workers`, which all instances share."""
    is_remote: bool
    """Whether the callers call it in a server, through a socket."""
    requests: int
    """How many requests there are with a cache of their own, which all callers make calls of."""

    @property
    def instances(self) -> int:
        """How many batchers there are."""
        return 2 if self.binding == "method" else 1

    def fault_of(self, number: int) -> str | None:
        """Return what is wrong with an item, None if nothing is."""
        kind = number % _KINDS
        fault = FAULTS[kind] if kind < len(FAULTS) else None
        if (
            (fault == "returned" and (self.shape == "arrays" or self.outputs == "array"))
            or (fault == "nothing" and self.shape == "stream")
            or (fault == "unmeasured" and not self.is_measured)
            or (fault == "ungrouped" and not self.options.get("group_by"))
            or (fault == "unkeyed" and not self.options.get("cache_key"))
        ):
            return None
        return fault

    def salt_of(self, instance: int) -> int:
        """Return what the answers of an instance differ by; with a `cache_key` instances share results."""
        return 0 if self.options.get("cache_key") else instance

    @property
    def is_measured(self) -> bool:
        """Whether the lengths of items are asked for."""
        names = ("length", "max_batch_length", "max_joining_length")
        measures = any(map(self.options.get, names))
        return bool(measures) and self.shape != "arrays"

    def group_of(self, number: int) -> int:
        """Return the key by which an item is grouped."""
        return serial_of(number) % self.keys


def draw(seed: int) -> Plan:
    """Return the run of a seed."""
    rng = Random(f"plan {seed}")
    drive = rng.choice(("thread", "thread", "thread", "aio", "aio", "aio-plain"))
    shape = rng.choice(("list", "list", "list", "columns", "arrays", "arrays", "arrays", "stream"))
    awaits = drive == "aio" or (drive == "thread" and rng.random() < 0.3)
    options = _options(rng, drive, shape)
    options |= _sizes(seed, shape, options)
    if shape == "stream":
        options |= _refilled(seed, options)
    loops = rng.choices((1, 4, 12), k=rng.choice((1, 1, 2, 3)))
    threads = rng.choice((1, 2, 4, 8)) if drive == "thread" else 0
    if drive == "thread" and rng.random() < 0.4:
        loops = []
    libraries = ("numpy", "numpy", "torch" if HAS_TORCH else "numpy")
    layouts = [
        (rng.choice(libraries), rng.choice(("int64", "float64")), rng.choice((0, 0, 2)))
        for _ in range(rng.choice((1, 1, 3)))
    ]
    if options.get("unpad_outputs") is True:  # which would take those for padding
        layouts = [(library, dtype, 0) for library, dtype, _ in layouts]
    # CPython 3.11 may crash where a task that waits in `asyncio.timeout`, as consumers of streams do, is
    # collected with its loop.
    ways = ("finish", "finish", "finish", "leave", "leave" if shape == "stream" else "abandon")
    leaving = [rng.choice(ways) for _ in loops]
    kinds = [
        rng.choice(("asyncio", "debug", "uvloop") if how != "abandon" else ("asyncio",)) for how in leaving
    ]
    batch_size = options["batch_size"]
    sizes = options.get("batch_sizes") or (1,)
    binding = rng.choice(
        ("function", "function", "method", "method", "classmethod", "staticmethod", "callable")
    )
    stages, main_stage = _stages(seed, shape, binding)
    is_remote = drive == "thread" and Random(f"remote {seed}").random() < 0.3
    shares_workers = drive != "aio" and not is_remote and Random(f"workers {seed}").random() < 0.25
    if stages and not shares_workers:
        options["max_concurrent_batches"] = 1
    plan = Plan(
        seed=seed,
        drive=drive,
        shape=shape,
        awaits=awaits,
        binding=binding,
        options=options,
        keys=rng.choice((1, 2, 3, 7)),
        outputs=rng.choice(("list", "list", "tuple", "array", "reused")),
        clears=rng.random() < 0.3,
        memory=max(rng.randint(1, batch_size), min(sizes)) if rng.random() < 0.3 else None,
        faults=tuple(fault for fault in FAULTS if rng.random() < 0.5),
        fault_rate=rng.choice((0.0, 0.0, 0.01, 0.05, 0.3, 1.0)),
        delays=rng.choice(((0.0,), (0.0, 0.0005), (0.0, 0.002, 0.004))),
        spread=rng.choice((15, 200, 10_000)),
        layouts=tuple(layouts),
        threads=threads,
        loops=tuple(loops),
        loop_kinds=tuple(kinds),
        leaving=tuple((how, rng.uniform(0.01, 0.15)) for how in leaving),
        asks=max(3, rng.choice((60, 200, 500, 1500)) // (threads + sum(loops))),
        configures=rng.random() < 0.4,
        reads_stats=rng.random() < 0.5,
        collects=rng.random() < 0.2,
        ending=rng.choice(("shutdown", "shutdown", "cancel", "with", "drop")),
        ends_after_s=rng.uniform(0.0, 0.1) if rng.random() < 0.25 else None,
        switch_s=rng.choice((1e-6, 1e-6, 1e-6, 1e-4)),
        stages=stages,
        main_stage=main_stage,
        mix=rng.choice(("everything", "everything", "everything", "singles", "lists")),
        shares_workers=shares_workers,
        is_remote=is_remote,
        requests=_requests(seed, shape, options),
    )
    if not plan.is_remote:
        return plan
    # Nothing is configured by a client. Of one that is dropped, the server goes on.
    ending = "shutdown" if plan.ending == "drop" else plan.ending
    return replace(plan, configures=False, ending=ending, requests=0)


def _requests(seed: int, shape: str, options: dict[str, Any]) -> int:
    """Return how many requests have a cache of their own."""
    if shape == "stream" or (shape == "arrays" and not options.get("cache_key")):
        return 0
    return Random(f"requests {seed}").choice((0, 0, 1, 3))


def _stages(seed: int, shape: str, binding: str) -> tuple[tuple[str, ...], str]:
    """Return the stages of a run besides the function, and which of all has the faults and the answers."""
    rng = Random(f"stages {seed}")
    choices: tuple[tuple[str, ...], ...] = ((), (), ("prepare",), ("finish",), ("prepare", "finish"))
    stages = rng.choice(choices if shape != "stream" else choices[:2])
    # A function that is given as a stage gets no instance.
    able = [stage for stage in stages if stage != "prepare" or binding in {"function", "staticmethod"}]
    return stages, rng.choice(("function", *able))


def _options(rng: Random, drive: str, shape: str) -> dict[str, Any]:
    options: dict[str, Any] = {
        "batch_size": rng.choice((1, 2, 3, 5, 8, 16, 32)),
        "timeout_ms": rng.choice((0, 0, 0.2, 1, 3)),
        "small_batch_threshold": rng.choice((0, 1, 3, 8)),
        "adaptive": rng.random() < 0.5,
        "max_concurrent_batches": rng.choice((1, 1, 1, 2, 4)),
        "isolate_errors": rng.random() < 0.5,
    }
    if rng.random() < 0.4:
        options["max_queue_size"] = rng.choice((1, 5, 20, 100))
        options["on_full"] = rng.choice(("raise", "wait"))
    if rng.random() < 0.3:
        options["max_batch_length"] = rng.choice((5, 20, 100))
    if shape != "arrays" and rng.random() < 0.3:
        options["length"] = True
    if rng.random() < 0.35:
        options["group_by"] = True
    if shape != "stream" and rng.random() < 0.35:
        kinds = ("dict", "dict", "least recently used", "broken")
        options["cache"] = rng.choice(
            kinds if drive == "thread" else (*kinds, "asynchronous", "asynchronous")
        )
        options["cache_key"] = shape == "arrays" or rng.random() < 0.5
    if shape == "arrays":
        options |= {
            "pad_token": rng.choice((0, -1)),
            "padding_side": rng.choice(("right", "left")),
            "pad_to_multiple_of": rng.choice((None, None, 4)),
            "unpad_outputs": rng.choice((False, True, {"tokens": "x"}, {"tokens": "x"})),
            "spread_kwargs": rng.random() < 0.3,
        }
    return options


def _refilled(seed: int, options: dict[str, Any]) -> dict[str, Any]:
    """Return the options of a stream that is refilled, of which half are: with draws of their own."""
    rng = Random(f"refilled {seed}")
    if rng.random() < 0.5:
        return {}
    options.pop("batch_sizes", None)
    limits: list[dict[str, Any]] = [{}, {"max_joining": 1}, {"max_joining": 3}, {"max_joining_length": 9}]
    return {"continuous": True, **rng.choice(limits)}


def _sizes(seed: int, shape: str, options: dict[str, Any]) -> dict[str, Any]:
    """Return which sizes and lengths the function sees, if only some: with draws of their own."""
    rng = Random(f"sizes {seed}")
    found: dict[str, Any] = {}
    most = options["batch_size"]
    if rng.random() < 0.3:
        fewer = rng.sample(range(1, most), min(most - 1, rng.choice((0, 1, 2, 4))))
        found["batch_sizes"] = (*sorted(fewer), most)
        if found["batch_sizes"][0] > 1:  # which needs copies
            found["isolate_errors"] = True
    if shape == "arrays" and not options["pad_to_multiple_of"] and rng.random() < 0.3:
        found["pad_to_lengths"] = rng.choice(((50,), (4, 50), {"x": (1, 8, 64)}))
    return found


def changes(plan: Plan) -> Iterator[dict[str, Any]]:
    """Yield what is configured, one after another."""
    rng = Random(f"changes {plan.seed}")
    while True:
        choices: dict[str, Any] = {
            "batch_size": rng.choice((1, 3, 8, 32)),
            "timeout_ms": rng.choice((0, 0.5, 2)),
            "small_batch_threshold": rng.choice((0, 2, 8)),
            "adaptive": rng.random() < 0.5,
            "max_concurrent_batches": rng.choice((1, 2, 4)),
            "max_queue_size": rng.choice((None, 3, 30)),
            "on_full": rng.choice(("raise", "wait")),
            "isolate_errors": rng.random() < 0.5,
        }
        if plan.options.get("length") or plan.options.get("max_batch_length") or plan.shape == "arrays":
            choices["max_batch_length"] = rng.choice((None, 10, 50))
        if plan.shares_workers or plan.stages:
            del choices["max_concurrent_batches"]
        if sizes := plan.options.get("batch_sizes"):
            del choices["batch_size"]
            if sizes[0] > 1:  # which needs copies
                del choices["isolate_errors"]
        yield {name: choices[name] for name in rng.sample(sorted(choices), rng.choice((1, 2, 4)))}


def asks(plan: Plan, caller: int, *, on_loop: bool) -> Iterator[Ask]:
    """Yield what one caller asks."""
    rng = Random(f"caller {plan.seed} {caller}")
    for _ in range(plan.asks):
        yield _ask(rng, plan, on_loop=on_loop)


def _ask(rng: Random, plan: Plan, *, on_loop: bool) -> Ask:
    if plan.mix != "everything" and plan.shape != "stream":
        return _simple_ask(rng, plan, on_loop=on_loop)
    if plan.shape == "stream":
        way = "astream" if on_loop else "stream"
    elif on_loop:
        way = rng.choice(
            ("call", "acall", "acall", "amap") if plan.drive != "thread" else ("acall",) * 4 + ("amap",)
        )
    else:
        way = rng.choice(("call", "call", "call", "submit", "submit", "map"))
    lazily = way.endswith("map")
    many = plan.shape in {"list", "columns"} and not lazily and rng.random() < 0.4
    count = rng.choice((0, 1, 5, 40)) if lazily else rng.choice((0, 1, 2, 5, 16, 40)) if many else 1
    elements = tuple(_element(rng, plan, lazily=lazily) for _ in range(count))
    deadline_ms = rng.choice((None, None, None, None, 0.05, 1, 5, 5000))
    options = {
        "deadline_ms": deadline_ms,
        "priority": rng.choice((None, None, None, "bulk", "interactive")),
        "return_exceptions": way not in {"stream", "astream"} and rng.random() < 0.3,
    }
    endless = way in {"stream", "astream"} and pieces_of(elements[0][0]) == ENDLESS
    leaves = rng.random() < 0.2 or endless
    takes = lazily or way in {"stream", "astream"}
    return Ask(
        way=way,
        elements=elements,
        many=many,
        instance=rng.randrange(plan.instances),
        second=plan.shape == "columns" and rng.random() < 0.7,
        by_name=rng.random() < 0.3,
        options=tuple((name, value) for name, value in options.items() if value),
        chained=rng.random() < 0.3,
        cancel_s=rng.choice((0.0, 0.0, 0.0003, 0.002))
        if leaves and not endless and way in _CANCELLABLE
        else None,
        take=rng.choice((0, 1, 3, 20)) if leaves and takes else None,
        drops=rng.random() < 0.3,
        pause_s=rng.choice((0.0, 0.0, 0.0, 0.0, 0.0005, 0.003)),
        slow_s=rng.choice((0.0, 0.0, 0.0005)),
        breaks=lazily and rng.random() < 0.1,
        layout=rng.choice(plan.layouts),
        scribbles=rng.random() < 0.5,
    )


def _simple_ask(rng: Random, plan: Plan, *, on_loop: bool) -> Ask:
    many = plan.mix == "lists" and plan.shape != "arrays"
    return Ask(
        way="acall" if on_loop else "call",
        elements=tuple(_element(rng, plan, lazily=True) for _ in range(16 if many else 1)),
        many=many,
        instance=rng.randrange(plan.instances),
        layout=rng.choice(plan.layouts),
    )


_CANCELLABLE = frozenset({"acall", "call", "submit", "amap", "astream"})


def _element(rng: Random, plan: Plan, *, lazily: bool) -> tuple[int, ...]:
    rows = 1
    if plan.shape == "arrays":
        rows = rng.choice((1, 1, 2)) if lazily else rng.choice((0, 1, 1, 1, 2, 3, 8, 20))
        if plan.options.get("batch_sizes"):
            rows = rows or 1  # no rows cannot be filled up
    group = rng.randrange(plan.keys)
    numbers = []
    for _ in range(rows):
        fault = rng.choice(plan.faults) if plan.faults and rng.random() < plan.fault_rate else None
        serial = rng.randrange(plan.spread)
        if plan.shape == "arrays" and plan.options.get("group_by"):
            serial += (group - serial) % plan.keys
        numbers.append(number_of(serial, fault))
    return tuple(numbers)
