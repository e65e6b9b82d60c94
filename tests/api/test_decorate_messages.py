"""Mistakes of newcomers: each message says what was given and what to write."""

from __future__ import annotations

import asyncio
import sys
import warnings
from collections import UserList
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from functools import partial, wraps
from inspect import Parameter, signature
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, NewType, Protocol, TypedDict, TypeVar
from unittest.mock import MagicMock, Mock

import numpy as np
import pytest

import batched
from batched import aio, inference
from tests.kit.gate import PATIENCE_S

DECORATE = (batched.dynamically, inference.dynamically, aio.dynamically, aio.inference.dynamically)


class _Accepts(type):
    def __instancecheck__(cls, instance: object) -> bool:
        return isinstance(instance, list)


class OfLists(metaclass=_Accepts):
    """Accepts lists as its instances, as types of shapes do."""


class _Equal(type):
    __hash__ = None  # type: ignore[assignment]

    def __eq__(cls, other: object) -> bool:
        return True


class OfNoHash(metaclass=_Equal):
    """A class that cannot be a key."""


@batched.dynamically(timeout_ms=0)
def embed(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


class Frame(UserList[Any]):
    """As a data frame of pandas: it has columns, and iterates over their names."""

    columns = ("a", "b")


class Model:
    @batched.dynamically(timeout_ms=0)
    def embed(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]

    @aio.dynamically
    async def looped(self, texts: list[str]) -> list[int]:
        return [len(text) for text in texts]


class Color(Enum):
    RED = 1


@dataclass
class Query:
    text: str


class Row(TypedDict):
    text: str


class Pair(NamedTuple):
    text: str
    other: str


class Sizes(Protocol):
    def count(self, item: Any, /) -> int: ...


def nothing() -> list[int]:
    return [1]


class Submodel(Model):
    pass


def len_of(items: list[Any]) -> list[int]:
    return [len(items)]


class Idle:
    def __call__(self) -> list[int]:
        return []


@pytest.mark.parametrize("decorate", DECORATE)
@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ("embed", "got 'embed': pass a function"),
        (None, "got None: pass a function"),
        (["a"], r"got \['a'\]: pass a function"),
        (Model, "got the class Model: decorate one of its methods"),
        (nothing, "nothing takes no parameters"),
        (classmethod(lambda cls: []), "<lambda> takes no parameters"),
        (staticmethod(nothing), "nothing takes no parameters"),
        (partial(len_of, []), "len_of takes no parameters"),
        (Idle(), "Idle takes no parameters"),
        (Idle.__call__, "Idle.__call__ takes no parameters beside self"),
        (embed, "embed is already decorated: decorate its plain function, embed.__wrapped__"),
        (Model().embed, "Model.embed is already decorated"),
        (Model.embed, "Model.embed is already decorated"),
        (Model().looped, "Model.looped is already decorated"),
        (staticmethod(embed), "embed is already decorated"),
        (partial(embed), "embed is already decorated"),
        (embed.options(deadline_ms=5), "embed is already decorated"),
        (Mock(spec=len_of), "got a Mock that says it is one but has no code: .*create_autospec"),
        (MagicMock(spec=len_of), "got a MagicMock that says it is one but has no code"),
    ],
)
def test_what_is_no_batch_function_is_refused_when_it_is_decorated(
    decorate: Any, wrong: Any, message: str
) -> None:
    """With options and without."""
    with pytest.raises(TypeError, match=message):
        decorate(wrong)
    with pytest.raises(TypeError, match=message):
        decorate(batch_size=8)(wrong)
    with pytest.raises(TypeError, match=message):
        decorate(wrong, batch_size=8)


def test_what_makes_a_list_may_be_decorated() -> None:
    """A class whose instances are outputs, an object that is called, a function of any arguments."""
    assert batched.dynamically(list, timeout_ms=0)([1, 2]) == [1, 2]
    assert batched.dynamically(lambda *columns: columns[0], timeout_ms=0)(1, 2) == 1
    assert batched.dynamically(np.asarray, timeout_ms=0)(1) == 1


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
@pytest.mark.parametrize(
    ("annotation", "text"),
    [
        (int, "int"),
        ("int", "int"),
        (str, "str"),
        ("str | None", "str | None"),
        (dict, "dict"),
        ("dict[str, int]", "dict"),
        (bytes | None, "bytes | None"),
        (Annotated[str, "a text"], r"(typing\.)?Annotated"),
        (NewType("UserId", int), "tests.api.test_decorate_messages.UserId"),
        (Literal["a", "b"], "Literal"),
        ("tuple[str, str]", "tuple"),
        (Path | None, "pathlib"),
        (Color, "tests.api.test_decorate_messages.Color"),
        (Query, "tests.api.test_decorate_messages.Query"),
        (Row, "tests.api.test_decorate_messages.Row"),
        (Pair, "tests.api.test_decorate_messages.Pair"),
        (Model, "tests.api.test_decorate_messages.Model"),
        (OfNoHash, "tests.api.test_decorate_messages.OfNoHash"),
    ],
)
@pytest.mark.thread_unsafe(reason="it catches warnings")
def test_a_function_of_one_item_warns_when_it_is_decorated(decorate: Any, annotation: Any, text: str) -> None:
    """At the line that decorates it."""

    def one(x: Any) -> Any: ...

    one.__annotations__ = {"x": annotation}
    for decorated in (decorate, decorate(batch_size=8)):
        with pytest.warns(UserWarning, match=f"one takes x: {text}.*, which is one item") as caught:
            decorated(one)
        assert caught[0].filename == __file__


@pytest.mark.parametrize(
    "annotation",
    [
        list,
        "list[int]",
        "Sequence[str]",
        Any,
        "Unknown",
        np.ndarray,
        "tuple[int, ...]",
        "list | None",
        object,
        TypeVar("T"),
        Iterable[int],
        Collection,
        Iterator[str],
        Annotated[list[int], "numbers"],
        NewType("Texts", list),
        Sizes,
        Parameter.empty,
        OfLists,
    ],
)
@pytest.mark.thread_unsafe(reason="it catches warnings")
def test_other_annotations_do_not_warn(annotation: Any) -> None:
    """Nor methods, nor what `partial` has set, nor what a wrapper makes of the list."""

    def function(x: Any, **more: Any) -> Any: ...

    def scaled(scale: float, xs: list[int]) -> Any: ...

    def scaled_batch(batch: Color) -> Any: ...

    def gathered(function: Any) -> Any:
        @wraps(function)
        def wrapper(items: list[Any]) -> Any:
            return function(Color(items[0]))

        return wrapper

    function.__annotations__ = {"x": annotation}
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        batched.dynamically(function)
        batched.dynamically(partial(scaled, 2.0))
        batched.dynamically(Model.embed.__wrapped__)
        batched.dynamically(gathered(scaled_batch))


@pytest.mark.parametrize(
    ("option", "where"),
    [
        ({"deadline_ms": 200}, r", which is an option of calls: fn.options\(deadline_ms=...\)"),
        (
            {"timeout": 3},
            r" \(did you mean 'deadline_ms'\?\), which is an option of calls: fn.options\(deadline_ms=...\)",
        ),
        ({"batch_size": 8}, ", which the decorator takes and fn.configure changes"),
        ({"cache": {}}, ", which only the decorator takes"),
        ({"pad_token": 0}, ", which batched.inference.dynamically takes"),
    ],
)
def test_an_option_that_is_given_to_a_call_is_told_where_it_is_given(
    option: dict[str, Any], where: str
) -> None:
    """Of functions of one list, of several, and of arrays."""

    def pair(xs: list[int], ys: list[int]) -> list[int]:
        return [x + y for x, y in zip(xs, ys, strict=True)]

    message = f"it has no parameter '{next(iter(option))}'{where}"
    for call in (
        partial(embed, "a"),
        partial(Model().embed, "a"),
        partial(batched.dynamically(pair), 1, 2),
        partial(inference.dynamically(lambda features: features["a"]), {"a": np.zeros((1, 2))}),
    ):
        with pytest.raises(TypeError, match=message):
            call(**option)


@pytest.mark.parametrize("decorate", DECORATE)
@pytest.mark.parametrize(
    ("option", "where"),
    [
        ("batch_size", "which the decorator takes and fn.configure changes"),
        ("group_by", "which only the decorator takes"),
        ("deadline_ms", r"which is an option of calls: fn.options\(deadline_ms=...\)"),
    ],
)
def test_an_option_is_no_attribute(decorate: Any, option: str, where: str) -> None:
    """Setting one would change nothing, of a method or a view either; an attribute of another name is set."""

    class Service:
        @decorate
        def ask(self, items: Any) -> Any:
            return items

    def own(items: Any) -> Any:
        return items

    fn = decorate(own)
    for each in (fn, fn.options(priority="bulk"), Service().ask, Service.ask):
        for touch in (
            partial(setattr, each, option, 3),
            partial(getattr, each, option),
            partial(delattr, each, option),
        ):
            with pytest.raises(AttributeError, match=f"no attribute {option!r}, {where}"):
                touch()
        assert not hasattr(each, option)
        assert option not in dir(each)
    fn.owner = "search"
    assert fn.owner == "search"
    Service.ask.owner = "search"
    assert Service.ask.owner == Service().ask.owner == "search"
    del Service.ask.owner
    assert not hasattr(Service().ask, "owner")


def test_a_function_keeps_an_attribute_of_its_own_with_the_name_of_an_option() -> None:
    """It had it before it was decorated; as any other of its attributes, it may be set and deleted."""

    def fn(items: list[int]) -> list[int]:
        return items

    fn.name = "mine"  # type: ignore[attr-defined]
    decorated: Any = batched.dynamically(fn)
    assert decorated.name == decorated.options(priority="bulk").name == "mine"
    assert "name" in dir(decorated)
    decorated.name = "another"
    assert decorated.name == "another"
    del decorated.name
    assert not hasattr(decorated, "name")


def test_a_parameter_with_the_name_of_an_option_is_not_said_to_be_missing() -> None:
    """Of functions of one list, of several, and of arrays."""

    def one(length: list[int]) -> list[int]:
        return length

    def pair(xs: list[int], length: list[int]) -> list[int]:
        return xs

    for call in (
        partial(batched.dynamically(one), 1),
        partial(batched.dynamically(pair), 1, 2),
        partial(inference.dynamically(one), np.zeros(1)),
    ):
        with pytest.raises(TypeError) as caught:
            call(length=3)
        assert "no parameter" not in str(caught.value)


@pytest.mark.parametrize("wrong", [([1],), (), (3, "x"), (None,), (np.zeros(2),)])
def test_a_method_called_on_its_class_says_to_call_it_on_an_instance(wrong: tuple[Any, ...]) -> None:
    """Whatever is in the place of the instance."""
    for way in (Model.embed, Model.embed.submit, Submodel.embed):
        with pytest.raises(
            TypeError, match=r"Model.embed is a method: call it on an instance, as in \w+\(...\).embed"
        ):
            way(*wrong)
    with pytest.raises(TypeError, match="call it on an instance"):
        asyncio.run(Model.embed.acall(*wrong))
    assert Submodel.embed(Model(), "one") == 3


def test_a_function_that_yields_says_how_its_pieces_are_taken() -> None:
    """Where it has a map: of a call the answer is a list of pieces."""

    @batched.dynamically
    def letters(words: list[str]) -> Any:
        yield words

    with pytest.raises(TypeError, match=r"letters yields, .* has no map: .*letters.stream\(item\)"):
        letters.map(["one"])
    assert letters("one") == letters.submit("one").result(PATIENCE_S) == ["one"]


def test_arguments_are_shown() -> None:
    """Not dots."""
    with pytest.raises(TypeError, match=r"got \('a', 'b'\)"):
        embed("a", "b")
    with pytest.raises(TypeError, match=r"got \('a', other=3\)"):
        embed("a", other=3)
    with pytest.raises(TypeError, match=r"got \(\)"):
        embed()


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        (None, "not NoneType: is a `return` missing"),
        (iter([1]), "write `return list"),
        (map(str, [1]), "not map: write `return list"),
        ((each for each in [1]), "not generator: .*; to stream, decorate the generator function without"),
        ({1: 2}, r"not dict: if its keys are the items, write `return \[outputs\[item\] for"),
        ({"a": [1], "b": [2]}, r"if it has a column for each name, `return \[dict\(zip\(outputs, row\)\)"),
        (Frame(), "not Frame, which iterates over its columns: return a list of its"),
        ({1}, "not set, which has no order"),
        (ValueError("all"), "not ValueError: raise it, or return it in the place of the result"),
        (3, "not int, 3"),
        ([1, 2], "returned 2 results for a batch of 1 item; it must return one result per item"),
        ([], "returned 0 results for a batch of 1 item; it must"),
        (([1.0], [2.0]), r"has one element per item, write `return list\(zip\(\*outputs\)\)`$"),
        ((1.0, 2.0), "None or an exception for an item without a result$"),
        ((np.zeros(()), "a"), "None or an exception for an item without a result$"),
        ((), "returned 0 results for a batch of 1 item; .* without a result$"),
    ],
)
def test_outputs_that_are_no_results_say_what_to_write(outputs: Any, message: str) -> None:
    """For each kind."""
    with pytest.raises((TypeError, ValueError), match=message):
        batched.dynamically(lambda items: outputs, timeout_ms=0)(1)


async def client(items: list[int]) -> list[int]:
    return items


async def numbers(items: list[int]) -> Any:
    yield items


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
@pytest.mark.parametrize(
    ("ask", "message"),
    [
        (client, "not coroutine: is an `await` missing"),
        (lambda items: asyncio.gather(client(items)), "not _GatheringFuture: is an `await` missing"),
        (numbers, "not async_generator: to stream, decorate the asynchronous generator function without"),
    ],
    ids=["coroutine", "gather", "generator"],
)
@pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning")
def test_what_is_to_be_awaited_is_no_result(decorate: Any, ask: Any, message: str) -> None:
    """It says what is missing."""

    async def function(items: list[int]) -> Any:
        return ask(items)

    async def main() -> None:
        with pytest.raises(TypeError, match=message):
            await decorate(function, timeout_ms=0).acall(1)

    asyncio.run(main())


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
def test_a_stream_outside_of_a_loop_says_how_it_is_read(decorate: Any) -> None:
    """As in `asyncio.run(spell.astream(item))`, where it is made before there is a loop."""

    async def spell(words: list[str]) -> Any:
        yield words

    with pytest.raises(RuntimeError, match=r"spell: no running event loop: write `async for piece in "):
        decorate(spell).astream("a")


@pytest.mark.parametrize("decorate", [batched.dynamically, aio.dynamically])
def test_a_call_that_is_awaited_outside_of_asyncio_says_what_to_write(decorate: Any) -> None:
    """Trio may run a coroutine, and asyncio knows nothing of the loop of trio."""
    fn = decorate(sorted)
    with pytest.raises(RuntimeError, match=r"^sorted: no running event loop: .* trio\.to_thread\.run_sync"):
        fn.acall(1).send(None)
    assert fn.stats.total_accepted == 0


class Arrays:
    def infer(self, ids: Any, mask: Any) -> Any:
        return ids * mask

    def of_one(self, features: Any, *rest: Any, scale: int = 2, **more: Any) -> Any:
        return features["x"] * scale


def of_two(ids: Any, mask: Any) -> Any:
    return ids * mask


def of_two_by_name(ids: Any, *, mask: Any) -> Any:
    return ids * mask


@pytest.mark.parametrize("function", [of_two, of_two_by_name, Arrays().infer])
def test_a_function_over_arrays_that_takes_several_is_refused_at_its_first_call(function: Any) -> None:
    """It is given one dict; its own error would come with the first batch, without a remedy."""
    x = np.ones((1, 2))
    refusal = r" takes ids, mask, but .* one dict of features: .*spread_kwargs"
    with pytest.raises(TypeError, match=refusal):
        inference.dynamically(function)(x=x)
    with pytest.raises(TypeError, match=refusal):
        asyncio.run(aio.inference.dynamically(function)(x=x))
    with pytest.raises(TypeError, match=refusal):
        inference.dynamically(lambda features: features, prepare=function)(x=x)
    assert inference.dynamically(function, spread_kwargs=True)(ids=x, mask=x).tolist() == [[1, 1]]


def test_a_function_over_arrays_that_takes_one_argument_may_have_more() -> None:
    """Those with a default; and an instance, whatever its name, also if it was written elsewhere."""
    x = np.ones((1, 2))
    assert inference.dynamically(Arrays().of_one)(x=x).tolist() == [[2, 2]]

    def elsewhere(model: Any, features: Any) -> Any:
        return features["x"]

    class Model:
        of_one = inference.dynamically(Arrays.of_one)
        infer = inference.dynamically(elsewhere)

    assert Model().of_one(x=x).tolist() == [[2, 2]]
    assert Model().infer(x=x).tolist() == [[1, 1]]
    with pytest.raises(TypeError, match="Arrays.infer takes ids, mask, but"):
        type("Other", (), {"infer": inference.dynamically(Arrays.infer)})().infer(x=x)
    assert inference.dynamically(of_two, prepare=lambda features: features["x"])


def test_a_function_over_arrays_may_say_that_it_takes_several() -> None:
    """Its `__signature__` may be that of a function which it gives the others."""

    def given(*args: Any) -> Any:
        return args[0]["x"]

    given.__signature__ = signature(of_two)  # type: ignore[attr-defined]
    assert inference.dynamically(given)(x=np.ones((1, 2))).tolist() == [[1, 1]]


def test_a_module_that_was_not_imported_says_so() -> None:
    """Pages name `batched.asgi.Batching` and others, and `import batched` has few of the modules."""
    missing = vars(batched)["__getattr__"]  # that of the package: another test may have imported the module
    with pytest.raises(
        AttributeError, match="no attribute 'asgi': it is a module, so `import batched.asgi`$"
    ):
        missing("asgi")
    for name in ("nothing", "_api", "a.b", ""):
        with pytest.raises(AttributeError, match=f"no attribute '{name}'$"):
            missing(name)


def test_a_module_that_a_test_has_replaced_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is asked for as an attribute first, and has no spec."""
    stand_in = Mock()
    monkeypatch.setitem(sys.modules, "batched.replaced", stand_in)
    from batched import replaced  # type: ignore[attr-defined]

    assert replaced is stand_in


def test_a_view_cannot_be_shut_down_by_a_with_block() -> None:
    """Its options read like those of the block, and at the end the function would be closed to all."""
    fn, on_loop = batched.dynamically(sorted), aio.dynamically(sorted)
    refusal = (
        r"would shut down sorted for all callers: write {}:` for that, and `with batched.deadline\(ms\):`"
    )
    with pytest.raises(TypeError, match=refusal.format("`with fn")), fn.options(deadline_ms=500):
        raise AssertionError
    with pytest.raises(TypeError, match=refusal.format("`async with fn")):
        asyncio.run(on_loop.options(priority="bulk").__aenter__())
    with fn.options() as same:  # it changes nothing
        assert same(2) == 2
