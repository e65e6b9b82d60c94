"""Options are checked at the door, with the value in the message."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import numpy as np
import pytest

import batched
from batched import aio, inference
from batched._api import signatures
from batched._core.options import POSITIONAL, ArrayOptions, CallOptions, Options

DECORATORS = (
    (batched.dynamically, Options, {"length": len}),
    (inference.dynamically, ArrayOptions, {"pad_tokens": 3}),
    (aio.dynamically, Options, {"length": len}),
    (aio.inference.dynamically, ArrayOptions, {"pad_tokens": 3}),
)


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, "batch_size must be at least 1, got 0"),
        ({"batch_size": -3}, ValueError, "batch_size must be at least 1, got -3"),
        ({"batch_size": 2.5}, TypeError, "batch_size must be an int, got 2.5"),
        ({"batch_size": True}, TypeError, "batch_size must be an int, got True"),
        ({"batch_size": "8"}, TypeError, "batch_size must be an int, got '8'"),
        ({"timeout_ms": -1}, ValueError, "timeout_ms must be at least 0, got -1"),
        ({"timeout_ms": float("nan")}, ValueError, "timeout_ms must be at least 0, got nan"),
        ({"timeout_ms": float("inf")}, ValueError, "timeout_ms must be at most .*, got inf"),
        ({"timeout_ms": "5"}, TypeError, "timeout_ms must be a number of milliseconds, got '5'"),
        ({"timeout_ms": None}, TypeError, "timeout_ms must be a number of milliseconds, got None"),
        ({"small_batch_threshold": -1}, ValueError, "small_batch_threshold must be at least 0, got -1"),
        ({"max_pieces": 0}, ValueError, "max_pieces must be at least 1, got 0"),
        ({"max_pieces": None}, TypeError, "max_pieces must be an int, got None"),
        ({"name": 3}, TypeError, "name must be a string, got 3"),
        (
            {"max_batch_size": 3},
            TypeError,
            r"no option 'max_batch_size' \(did you mean 'batch_size'\?\); it has batch_size, ",
        ),
        ({"priority_strategy": 3}, TypeError, "no option 'priority_strategy'; it has batch_size, "),
    ],
)
def test_a_senseless_option_is_refused_at_decoration(options: Any, error: Any, message: str) -> None:
    """In every form of the decorator, before any function is called."""
    with pytest.raises(error, match=message):
        batched.dynamically(**options)
    with pytest.raises(error, match=message):
        batched.dynamically(len, **options)


def test_options_may_be_positional_with_and_without_the_function() -> None:
    """The first three, in their order."""
    for fn in (
        batched.dynamically(sorted, 64, 1.5, 2),
        batched.dynamically(64, 1.5, 2)(sorted),
        batched.dynamically(64, small_batch_threshold=2, timeout_ms=1.5)(sorted),
        batched.dynamically(np.int64(64), np.float32(1.5), np.int8(2))(sorted),
    ):
        assert "batch_size=64, timeout_ms=1.5, small_batch_threshold=2" in repr(fn)
    with pytest.raises(TypeError, match="batch_size was given twice"):
        batched.dynamically(64, batch_size=64)
    with pytest.raises(TypeError, match="by position"):
        batched.dynamically(64, 1, 2, 3)


def test_only_functions_can_be_decorated() -> None:
    """And the error says what was given."""
    with pytest.raises(TypeError, match="got 'embed'"):
        batched.dynamically()("embed")  # type: ignore[call-overload]
    with pytest.raises(TypeError, match="batch_size must be an int, got 'embed'"):
        batched.dynamically("embed")  # type: ignore[call-overload]


def test_a_name_of_ones_own_is_used_in_errors_and_thread_names() -> None:
    """Two batchers of one function can be told apart."""
    fn = batched.dynamically(lambda xs: None, timeout_ms=0, name="embed queries")
    with pytest.raises(TypeError, match="^embed queries must return"):
        fn(1)
    assert fn._batcher.workers.threads[0].name == "batched: embed queries"
    assert "embed queries" in repr(fn)


@pytest.mark.parametrize(("decorator", "kind", "extra"), DECORATORS)
def test_the_signature_of_a_decorator_says_every_option(decorator: Any, kind: Any, extra: Any) -> None:
    """Name, default and type, as they are checked; what the signature refuses is refused."""
    signature = inspect.signature(decorator)
    plain = kind()
    for name, parameter in signature.parameters.items():
        if name == "func":
            continue
        assert parameter.annotation is not parameter.empty
        decorator(**{name: parameter.default})
        assert name in extra or getattr(plain, name) == parameter.default or parameter.default is False
    assert extra.keys() <= signature.parameters.keys()
    bound = signature.bind(len, 64, 1.5, small_batch_threshold=2, cache={}, cache_key=len, **extra)
    assert decorator(*bound.args, **bound.kwargs).__wrapped__ is len
    with pytest.raises(TypeError):
        signature.bind(len, 64, 1.5, 2, True)


@pytest.mark.parametrize(
    ("seen", "function"),
    [
        (signatures.ListKeywordOptions, batched.dynamically),
        (signatures.ArrayKeywordOptions, inference.dynamically),
        (signatures.Changes, batched.dynamically(len).configure),
        (signatures.CallChanges, batched.dynamically(len).options),
    ],
)
def test_type_checkers_see_the_options_of_the_table(seen: Any, function: Any) -> None:
    """The same names and types, though they are written down twice."""
    parameters = inspect.signature(function).parameters.values()
    named = {each.name: each.annotation for each in parameters if each.kind is each.KEYWORD_ONLY}
    assert get_type_hints(seen) == named


@pytest.mark.parametrize("seen", [signatures.list_options, signatures.array_options])
def test_type_checkers_see_the_options_that_may_be_positional(seen: Any) -> None:
    """They stand before the others."""
    shown = inspect.signature(batched.dynamically).parameters
    *positional, _ = inspect.signature(seen).parameters.values()
    assert tuple(each.name for each in positional) == POSITIONAL
    assert [each.annotation for each in positional] == [
        shown[name].annotation.__name__ for name in POSITIONAL
    ]


@pytest.mark.parametrize(("decorator", "kind", "extra"), DECORATORS)
def test_the_docstrings_say_every_option_and_its_sentence(decorator: Any, kind: Any, extra: Any) -> None:
    """Of each decorator, of `configure`, and of `options`."""
    fn = decorator(len)
    for documented in (decorator, fn.configure, fn.options):
        text = " ".join(documented.__doc__.split())
        rows = {field.name: field for field in fields(CallOptions if documented == fn.options else kind)}
        for name in [*inspect.signature(documented).parameters][documented is decorator :]:
            if name in rows:
                assert f" {name}: {rows[name].metadata['text']}" in text
        assert "{options}" not in text


def test_the_signatures_of_what_changes_options_say_all_names() -> None:
    """What is left out stays as it is, so there are no defaults."""
    fn = batched.dynamically(len)
    assert list(inspect.signature(fn.options).parameters) == [
        "deadline_ms",
        "priority",
        "return_exceptions",
    ]
    for parameter in inspect.signature(fn.configure).parameters.values():
        assert (parameter.kind, parameter.default) == (parameter.KEYWORD_ONLY, ...)
    assert "batch_size" in inspect.signature(fn.configure).parameters


@pytest.mark.parametrize(("decorator", "kind", "extra"), DECORATORS)
def test_a_misspelt_option_is_told_the_nearest_name(decorator: Any, kind: Any, extra: Any) -> None:
    """In every place that takes options, and never with the name of a class that users do not know."""
    fn = decorator(len)
    for take, name, meant, can in (
        (decorator, "bach_size", "batch_size", "has batch_size, "),
        (fn.configure, "timeout", "timeout_ms", "can change .*batch_size, "),
        (fn.options, "dedline_ms", "deadline_ms", "has deadline_ms, priority, return_exceptions"),
    ):
        with pytest.raises(TypeError, match=rf"'{name}' \(did you mean '{meant}'\?\); it {can}"):
            take(**{name: 1})
        with pytest.raises(TypeError, match="'zzz'; it "):
            take(zzz=1)
    for take in (fn.configure, fn.options):
        with pytest.raises(TypeError, match=rf"^{take.__name__}\(\) takes 1 positional"):
            take(64)
