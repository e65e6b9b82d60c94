"""Parameters with a scalar as their default hold for a whole batch: as a column, `False` is `[False]`."""

from __future__ import annotations

import functools
import inspect
import pickle
import re
from collections.abc import Sequence
from decimal import Decimal
from typing import Any

import numpy as np
import pytest

import batched
from batched._collate.columns import is_setting
from tests.kit.flavours import Flavour


def encode(texts: list[str], prompt: Any = None, norm: bool = False, *, size: int = 32) -> list[Any]:
    """Return what each text would be encoded with."""
    prompts = [None] * len(texts) if prompt is None else prompt
    return [(text, each, norm, size) for text, each in zip(texts, prompts, strict=True)]


@pytest.mark.parametrize(
    ("args", "named", "said"),
    [
        (("a",), {"norm": False}, "norm=False"),
        (("a",), {"norm": None}, "norm=None"),
        ((["a", "b"],), {"norm": [True, True]}, "norm=[True, True]"),
        (("a", "p", True), {}, "norm=True"),
        (("a", "p"), {"size": 8}, "size=8"),
        ((), {"texts": "a", "size": 8}, "size=8"),
    ],
)
def test_a_call_that_sets_what_holds_for_a_batch_is_refused(
    flavour: Flavour, args: Any, named: Any, said: str
) -> None:
    """By its caller, with the name, the value and what to write; nothing runs, and other calls go on."""
    fn = flavour.decorate(encode, timeout_ms=0)
    name = said.partition("=")[0]
    remedy = f"functools.partial(function, {name}=...)"
    with pytest.raises(TypeError, match=f"^encode: {re.escape(said)} .*{re.escape(remedy)}"):
        flavour.call(fn, *args, **named)
    assert not fn.stats.total_accepted
    assert flavour.call(fn, "a") == ("a", None, False, 32)
    assert flavour.call(fn, ["a", "b"], ["p", "q"]) == [("a", "p", False, 32), ("b", "q", False, 32)]
    assert flavour.call(fn, "a", prompt="p") == ("a", "p", False, 32)


def test_a_partial_sets_it_for_all_calls(flavour: Flavour) -> None:
    """As the message says; no call then sets it anew."""
    fn = flavour.decorate(functools.partial(encode, norm=True, size=8), timeout_ms=0)
    assert flavour.call(fn, ["a"]) == [("a", None, True, 8)]
    with pytest.raises(TypeError, match="size=9 cannot be passed"):
        flavour.call(fn, "a", size=9)


def test_maps_and_streams_refuse_it_too(streaming: Flavour) -> None:
    """Where they are called, or at the first element."""

    def steps(texts: list[str], norm: bool = False) -> Any:
        yield texts

    fn = streaming.decorate(encode, timeout_ms=0)
    with pytest.raises(TypeError, match=r"norm=\[True\] cannot be passed"):
        streaming.map(fn, ["a"], ["p"], [True])
    assert streaming.map(fn, ["a"], ["p"]) == [("a", "p", False, 32)]
    streams = streaming.decorate(steps, timeout_ms=0)
    with pytest.raises(TypeError, match="norm=True cannot be passed"):
        next(streaming.stream(streams, "a", norm=True))
    assert list(streaming.stream(streams, "a"))[:1] == ["a"]


def test_arrays_are_no_settings(flavour: Flavour) -> None:
    """Features come by name, whatever the function has as a default."""
    numpy = pytest.importorskip("numpy")

    def total(*, x: Any, scale: Any = 1.0) -> Any:
        return x.sum(axis=1) * scale

    fn = flavour.decorate_arrays(total, timeout_ms=0, spread_kwargs=True)
    assert flavour.call(fn, x=numpy.ones((2, 3)), scale=numpy.full(2, 2.0)).tolist() == [6, 6]


class Model:
    def encode(self, texts: list[str], norm: bool = False) -> list[Any]:
        return [(text, norm) for text in texts]


def test_methods_and_copies_know_it(flavour: Flavour) -> None:
    """Bound methods, callables, and what was pickled."""
    flavour.needs_threads()
    fn = flavour.decorate(Model().encode, timeout_ms=0)
    for each in (fn, pickle.loads(pickle.dumps(fn))):
        with pytest.raises(TypeError, match="norm=True cannot be passed"):
            each("a", norm=True)
        assert each("a") == ("a", False)
        each.shutdown()


def columns(  # noqa: PLR0913, PLR0917  one of each kind
    first: int = 0,
    nothing: Any = None,
    empty: Any = (),
    full: Any = [],  # noqa: B006
    written: list[int] = 0,  # type: ignore[assignment]
    either: Sequence[int] | int = 0,
    fixed: tuple[int, ...] = 0,  # type: ignore[assignment]
    array: np.ndarray[Any, Any] = 0,  # type: ignore[assignment]
    *rest: int,
    **more: int,
) -> list[int]:
    return []


def settings(  # noqa: PLR0913, PLR0917  one of each kind
    first: Any,
    a: Any = True,
    b: int = 1,
    c: Any = 1.5,
    d: Any = 1j,
    e: str = "",
    f: Any = b"",
    *,
    g: Any = 0,
    h: Any = np.float32(1),  # noqa: B008
    i: Any = Decimal(1),
) -> list[int]:
    return []


@pytest.mark.parametrize("eval_str", [False, True])
def test_settings_are_told_by_defaults_and_annotations(eval_str: bool) -> None:
    """Also where annotations are strings."""
    names = [*inspect.signature(columns, eval_str=eval_str).parameters.values()]
    assert [each.name for each in names[1:] if is_setting(each)] == []
    names = [*inspect.signature(settings, eval_str=eval_str).parameters.values()]
    assert [each.name for each in names if is_setting(each)] == list("abcdefghi")


def test_the_first_parameter_is_always_a_column() -> None:
    """There would be no item without it."""

    @batched.dynamically(timeout_ms=0)
    def count(numbers: Any = 0, by: Any = None) -> list[int]:
        return [number + 1 for number in numbers]

    assert count(1) == 2
    assert count(numbers=[1, 2]) == [2, 3]


def test_more_columns_by_name_go_beside_a_setting(flavour: Flavour) -> None:
    """`**kwargs` takes any name but that of a setting."""

    def join(texts: list[str], norm: bool = False, **named: list[Any]) -> list[Any]:
        return [(*row, norm) for row in zip(texts, *named.values(), strict=True)]

    fn = flavour.decorate(join, timeout_ms=0)
    assert flavour.call(fn, "a", b=1) == ("a", 1, False)
    with pytest.raises(TypeError, match="norm=1 cannot be passed"):
        flavour.call(fn, "a", b=1, norm=1)
