"""Signatures and docstrings say what the table of options says."""

from __future__ import annotations

import ast
import inspect
import json
import re
from dataclasses import fields
from itertools import pairwise
from typing import Any, get_overloads, get_type_hints

import pytest

import batched
from batched import inference
from batched._api import option_types
from batched._core.options import POSITIONAL, ArrayOptions, CallOptions, Options
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
        (option_types.ListKeywordOptions, batched.dynamically),
        (option_types.ArrayKeywordOptions, inference.dynamically),
        (option_types.Changes, batched.dynamically(len).configure),
        (option_types.CallChanges, batched.dynamically(len).options),
    ],
)
def test_type_checkers_see_the_options_of_the_table(seen: Any, function: Any) -> None:
    """The same names and types, though they are written down twice; stages have overloads of their own."""
    parameters = inspect.signature(function).parameters.values()
    named = {each.name: each.annotation for each in parameters if each.kind is not each.POSITIONAL_ONLY}
    assert get_type_hints(seen) == named | {
        stage: type(None) for stage in named.keys() & {"prepare", "finish"}
    }


@pytest.mark.thread_unsafe(reason="threads cannot parse source at once")
def test_editors_show_the_default_and_the_first_sentence_of_an_option() -> None:
    """Of each option: what stands below its name is all that an editor knows."""
    shown = {}
    for kind in ast.parse(inspect.getsource(option_types)).body:
        if isinstance(kind, ast.ClassDef):
            for name, text in pairwise(kind.body):
                if isinstance(name, ast.AnnAssign) and isinstance(text, ast.Expr):
                    shown[ast.unparse(name.target)] = " ".join(ast.literal_eval(text.value).split())
    assert shown.pop("pad_tokens") == "Another name of `pad_token`."
    rows = [field for kind in (ArrayOptions, Options, CallOptions) for field in fields(kind)]
    assert shown == {
        row.name: f"Default: {json.dumps(row.default) if isinstance(row.default, str) else row.default}. "
        + re.split(r"(?<=\.) ", row.metadata["text"])[0]
        for row in rows
    }


@pytest.mark.parametrize(("decorator", "kind", "extra"), DECORATORS)
def test_type_checkers_see_the_options_that_may_be_positional(decorator: Any, kind: Any, extra: Any) -> None:
    """Alone with an underscore, as type checkers want no name twice, and with the defaults of the table."""
    plain = kind()
    alone = 0
    for overload in get_overloads(decorator):
        others = {"func", "prepare", "finish", "options"}
        seen = [each for each in inspect.signature(overload).parameters.values() if each.name not in others]
        if len(seen) == 1:
            assert (seen[0].name, seen[0].kind) == ("by_position", seen[0].VAR_POSITIONAL)
        else:
            alone += 1
            assert tuple(each.name for each in seen) == tuple(f"{name}_" for name in POSITIONAL)
            assert all(each.kind is each.POSITIONAL_ONLY for each in seen)
            assert [each.default for each in seen] == [getattr(plain, name) for name in POSITIONAL]
    assert alone == 1


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
        assert "Each one" not in text


def test_the_signatures_of_what_changes_options_say_all_names() -> None:
    """What is left out stays as it is, so there are no defaults."""
    fn = batched.dynamically(len)
    names = ["deadline_ms", "priority", "return_exceptions", "request_cache"]
    assert list(inspect.signature(fn.options).parameters) == names
    for parameter in inspect.signature(fn.configure).parameters.values():
        assert (parameter.kind, parameter.default) == (parameter.KEYWORD_ONLY, ...)
    assert "batch_size" in inspect.signature(fn.configure).parameters
