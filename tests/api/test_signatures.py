"""Signatures and docstrings say what the table of options says."""

from __future__ import annotations

import inspect
from dataclasses import fields
from typing import Any, get_type_hints

import pytest

import batched
from batched import inference
from batched._api import signatures
from batched._core.options import POSITIONAL, CallOptions
from tests.kit.decorators import DECORATORS


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
