"""What `help`, `inspect` and web frameworks see of a decorated function: docstring, and how it is called."""

from __future__ import annotations

import asyncio
import copy
import functools
import gc
import inspect
import pydoc
import sys
import types
import warnings
import weakref
from typing import Annotated, Any, get_type_hints

import pytest

import batched
from batched import aio


@batched.dynamically(timeout_ms=0)
def embed(texts: list[str], normalize: bool = True) -> list[int]:
    """Embed texts."""
    return [len(text) for text in texts]


class Model:
    @batched.dynamically(timeout_ms=0)
    def embed(self, texts: list[str]) -> list[int | ValueError]:
        """Embed texts of a model."""
        return [len(text) for text in texts]

    @batched.dynamically
    @classmethod
    def of_class(cls, texts: list[str]) -> list[int]:
        """Embed texts of a class."""
        return [len(text) for text in texts]

    @batched.dynamically
    @staticmethod
    def static(texts: list[str]) -> list[int]:
        """Embed texts of no one."""
        return [len(text) for text in texts]

    @aio.dynamically(timeout_ms=0)
    async def looped(self, texts: list[str]) -> list[int]:
        """Embed texts in a task."""
        return [len(text) for text in texts]


class Tokenizer:
    def tokenize(self, texts: list[str], /) -> tuple[str, ...]:
        return tuple(texts)

    def embed(self, tokens: list[str]) -> list[int]:
        return [len(token) for token in tokens]

    def unpack(self, outputs: list[int]) -> list[bytes]:
        return [bytes(output) for output in outputs]


class Staged(Tokenizer):
    named = batched.dynamically(Tokenizer.embed, prepare="tokenize")


def local_class() -> Any:
    """Return a class made inside a function."""

    class Local:
        @batched.dynamically(timeout_ms=0)
        def embed(self, texts: list[str]) -> list[int]:
            """Embed texts of a local model."""
            return [len(text) for text in texts]

    return Local


def shown(found: Any) -> str:
    """Return what `help` shows."""
    return pydoc.plain(pydoc.render_doc(found))


LOCAL = local_class()
FOUND = (
    (embed, "Embed texts.", "embed"),
    (embed.options(deadline_ms=5000), "Embed texts.", "embed"),
    (Model().embed, "Embed texts of a model.", "Model.embed"),
    (Model.embed, "Embed texts of a model.", "Model.embed"),
    (Model.of_class, "Embed texts of a class.", "Model.of_class"),
    (Model().static, "Embed texts of no one.", "Model.static"),
    (Model().looped, "Embed texts in a task.", "Model.looped"),
    (LOCAL().embed, "Embed texts of a local model.", "local_class.<locals>.Local.embed"),
    (LOCAL.embed, "Embed texts of a local model.", "local_class.<locals>.Local.embed"),
)


@pytest.mark.parametrize(("found", "documentation", "name"), FOUND)
def test_help_shows_the_docstring_and_how_it_is_called(found: Any, documentation: str, name: str) -> None:
    """On functions, views, instances and classes, also on those that are made inside a function."""
    text = shown(found)
    assert documentation in text
    assert "(texts: str | list[str]) -> int | list[int]" in text.replace("self, ", "").replace("'", "")
    assert "acall" in text
    assert (".options, .stats" in text) == isinstance(found, batched.BatchedFunction | aio.BatchedFunction)
    assert inspect.getdoc(found) == found.__doc__ == documentation
    assert (found.__qualname__, found.__module__) == (name, __name__)
    assert functools.wraps(found)(lambda: None).__doc__ == documentation


def test_the_signature_is_that_of_calls() -> None:
    """Without the settings of a batch; with the columns that a call may leave out, and items of streams."""

    def columns(a: list[str], b: list[int] | None = None, *, c: list[bytes], scale: float = 1.0) -> Any: ...

    def pieces(prompts: list[str]) -> Any:
        yield prompts

    def plain(items):  # type: ignore[no-untyped-def]
        return items

    def seen(function: Any) -> str:
        return str(inspect.signature(batched.dynamically(function))).partition("  #")[0].replace("'", "")

    assert (
        seen(columns)
        == "(a: str | list[str], b: int | list[int] | None = None, *, c: bytes | list[bytes]) -> Any"
    )
    assert seen(pieces) == "(prompts: str) -> Any"
    assert seen(plain) == "(items)"
    assert [*inspect.signature(Model.embed).parameters] == ["self", "texts"]
    assert inspect.signature(embed).parameters["texts"].annotation == str | list[str]
    with pytest.raises(ValueError, match="signature"):
        inspect.signature(batched.dynamically(min))


def test_the_signature_of_a_method_with_stages_is_that_of_calls_through_its_class_too() -> None:
    """Whether a stage is a plain function, a method beside it, or the name of a method."""

    def tokenize(texts: list[str]) -> tuple[str, ...]:
        return tuple(texts)

    class Several(Tokenizer):
        plain = batched.dynamically(Tokenizer.embed, prepare=tokenize)
        beside = batched.dynamically(Tokenizer.embed, prepare=Tokenizer.tokenize)
        named = batched.dynamically(Tokenizer.embed, prepare="tokenize", finish="unpack")
        finished = batched.dynamically(Tokenizer.embed, finish="unpack")

    model = Several()
    for way in ("plain", "beside", "named", "finished"):
        through_class, on_instance = (inspect.signature(getattr(each, way)) for each in (Several, model))
        assert [*through_class.parameters] == ["self", *on_instance.parameters]
        assert [*through_class.parameters.values()][1:] == [*on_instance.parameters.values()]
        assert through_class.return_annotation == on_instance.return_annotation
    assert [*inspect.signature(Several.plain).parameters] == ["self", "texts"]


@batched.dynamically
def pieces(prompts: list[str]) -> Any:
    yield prompts


@aio.dynamically
def looped(texts: list[str]) -> list[int]:
    return [len(text) for text in texts]


TAKES_TEXTS = "(texts: str | list[str])"
WAYS_TO_CALL = (
    (embed.acall, TAKES_TEXTS),
    (embed.options(deadline_ms=5000).acall, TAKES_TEXTS),
    (embed.submit, TAKES_TEXTS),
    (pieces.acall, "(prompts: str)"),
    (pieces.stream, "(prompts: str)"),
    (pieces.astream, "(prompts: str)"),
    (looped.acall, TAKES_TEXTS),
    (Model().embed.acall, TAKES_TEXTS),
    (Model().embed.submit, TAKES_TEXTS),
    (Model.embed.acall, "(self, texts: str | list[str])"),
    (Model.embed.submit, "(self, texts: str | list[str])"),
    (Model().of_class.acall, TAKES_TEXTS),
    (Model.static.acall, TAKES_TEXTS),
    (Model().looped.acall, TAKES_TEXTS),
    (Staged().named.acall, "(texts: str | list[str], /)"),
    (batched.dynamically(Tokenizer().tokenize).acall, "(texts: str | list[str], /)"),
    (batched.dynamically(min).acall, "(*args: Any, **named: Any)"),
)


@pytest.mark.parametrize(("way", "takes"), WAYS_TO_CALL)
def test_the_signature_of_each_way_to_call_is_that_of_calls(way: Any, takes: str) -> None:
    """As FastAPI reads that of `Depends(embed.acall)`; `help` shows it."""
    seen = inspect.signature(way)
    assert str(seen.replace(return_annotation=seen.empty)).replace("'", "") == takes
    if not isinstance(way, functools.partial):  # of which `help` shows no parameters
        assert takes in shown(way).replace("'", "")


def test_the_signature_of_a_way_to_call_is_read_when_it_is_looked_at() -> None:
    """Decorating does not wait for it: an annotation may name what comes later."""

    def function(items: Any) -> Any: ...

    decorated = batched.dynamically(function)
    function.__annotations__ = {"items": list[int], "return": list[str]}
    seen = inspect.signature(decorated.acall)
    assert seen == copy.copy(seen)
    assert seen.return_annotation == str | list[str]
    assert seen.bind(5).arguments == {"items": 5}
    assert inspect.signature(decorated.submit).return_annotation == "Future[Any]"


def test_a_model_is_freed_with_its_function_and_waits_for_no_garbage_collection() -> None:
    """Nor does a class refer to it, which lives until then."""

    class Large:
        def embed(self, texts: list[str]) -> list[int]:
            return [len(text) for text in texts]

    model = Large()
    embed = batched.dynamically(model.embed)
    assert "texts" in inspect.signature(embed.acall).parameters
    way, is_alive = type(embed).submit, weakref.ref(model)
    gc.disable()
    try:
        del model, embed
        assert is_alive() is None
    finally:
        gc.enable()
    assert "named" in inspect.signature(way).parameters


def test_what_is_beside_an_annotation_stays_there() -> None:
    """Web frameworks read it."""

    def function(items: Annotated[list[int], "query"]) -> list[int]:
        return items

    seen = inspect.signature(batched.dynamically(function).acall)
    assert seen.parameters["items"].annotation == Annotated[int | list[int], "query"]


def test_the_signature_names_the_ways_that_there_are() -> None:
    """A function that streams has no map, and one that does not has no stream."""

    def pieces(prompts: list[str]) -> Any:
        yield prompts

    def plain(prompts: list[str]) -> list[str]:
        return prompts

    def named(function: Any) -> set[str]:
        ways = {"submit", "acall", "map", "amap", "stream", "astream"}
        return ways & set(str(inspect.signature(function)).partition("# also .")[2].split(", ."))

    assert named(batched.dynamically(pieces)) == {"submit", "acall", "stream", "astream"}
    assert named(aio.dynamically(pieces)) == {"acall", "astream"}
    assert named(batched.dynamically(plain)) == {"submit", "acall", "map", "amap"}
    assert named(aio.dynamically(plain)) == {"acall", "amap"}


def test_annotations_may_be_types_or_texts() -> None:
    """And texts may have names that are there for type checkers only."""

    def function(items: Any) -> Any: ...

    function.__annotations__ = {"items": list[int], "return": tuple[str | ValueError, ...]}
    signature = inspect.signature(batched.dynamically(function))
    assert signature.parameters["items"].annotation == int | list[int]
    assert signature.return_annotation == str | list[str]
    function.__annotations__ = {"items": "list[Unknown] | None", "return": "Sequence[Unknown]"}
    signature = inspect.signature(batched.dynamically(function))
    assert str(signature).startswith(
        "(items: Unknown | list[Unknown] | None) -> Unknown | list[Unknown]  # also .acall"
    )


def test_the_annotations_are_those_of_what_is_called() -> None:
    """As `functools.wraps` has them: of an object that is called, its method's; a function in C has none."""

    class Rows:
        width: int = 3

        def __call__(self, items: list[int]) -> list[str]:
            return [str(item) for item in items]

    class Bare:
        def __call__(self, items: list[int]) -> list[str]:
            return [str(item) for item in items]

    hints = get_type_hints(functools.wraps(Rows.__call__)(lambda: None))
    for called in (Rows(), Bare(), Bare().__call__, functools.partial(Rows())):
        decorated = batched.dynamically(called)
        assert get_type_hints(decorated) == hints
        assert get_type_hints(copy.copy(decorated)) == hints
    for in_c in (len, str.upper, functools.partial(max)):
        assert get_type_hints(batched.dynamically(in_c)) == {}
    for named in (embed, embed.options(deadline_ms=5), Model.embed, Model().embed, Model().embed.options()):
        assert get_type_hints(named) == get_type_hints(named.__wrapped__)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="such names are errors before Python 3.14")
def test_annotations_may_have_names_that_come_later() -> None:
    """They are found when they are asked for."""
    found: dict[str, Any] = {}
    exec(
        compile(
            "import batched\n"
            "@batched.dynamically\n"
            "def embed(items: list[Later]) -> list[int]: ...\n"
            "class Later: ...\n",
            "later",
            "exec",
            dont_inherit=True,
        ),
        found,
    )
    assert get_type_hints(found["embed"]) == {
        "items": types.GenericAlias(list, (found["Later"],)),
        "return": list[int],
    }


def test_a_function_for_tasks_is_a_coroutine_function() -> None:
    """So web frameworks await it; one that blocks is none."""
    for looped in (Model().looped, aio.dynamically(len), aio.dynamically(functools.partial(len))):
        assert inspect.iscoroutinefunction(looped)
        assert inspect.iscoroutinefunction(looped.acall)
        assert inspect.iscoroutinefunction(looped.options(deadline_ms=5))
    assert inspect.iscoroutinefunction(Model.embed.acall)
    for blocking in (embed, Model().embed, batched.dynamically(functools.partial(len))):
        assert not inspect.iscoroutinefunction(blocking)
        assert inspect.iscoroutinefunction(blocking.acall)


def test_a_way_to_call_through_the_class_has_its_docstring() -> None:
    """As on an instance."""
    for way in ("acall", "submit", "map"):
        assert getattr(Model.embed, way).__doc__ == getattr(embed, way).__doc__
    assert asyncio.run(Model.embed.acall(Model(), "one")) == 3


@pytest.mark.parametrize(
    ("forget", "name"),
    [
        (lambda: embed.acall("one"), "embed.acall"),
        (lambda: Model().embed.acall("one"), "Model.embed.acall"),
        (lambda: Model().looped("one"), "Model.looped"),
        (lambda: aio.dynamically(len, name="lengths")("one"), "lengths"),
        (lambda: LOCAL().embed.acall("one"), "Local.embed.acall"),
        (lambda: embed.aclose(), "embed.aclose"),
    ],
)
@pytest.mark.thread_unsafe(reason="it catches warnings")
def test_a_call_that_is_not_awaited_is_named(forget: Any, name: str) -> None:
    """In the warning of Python."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        forget()
        gc.collect()
    assert f"coroutine '{name}' was never awaited" in {str(each.message) for each in caught}
