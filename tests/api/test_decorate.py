"""What is decorated, with which options."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest

import batched
from tests.kit.decorators import DECORATORS
from tests.kit.threads import workers


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
    with pytest.raises(TypeError, match="got 'embed': pass a function"):
        batched.dynamically("embed")  # type: ignore[call-overload]


def labels(texts: list[str], upper: bool = False) -> list[str]:
    """Return the texts as labels."""
    return [text.upper() if upper else text for text in texts]


class Labels:
    def __init__(self) -> None:
        self.embed = partial(self.labels, upper=True)

    def labels(self, texts: list[str], upper: bool = False) -> list[str]:
        """Return the texts as labels."""
        return labels(texts, upper)


@pytest.mark.parametrize(
    ("function", "name"),
    [
        (partial(labels, upper=True), "labels"),
        (partial(partial(labels), upper=True), "labels"),
        (Labels().embed, "Labels.labels"),
    ],
)
def test_a_partial_function_has_the_name_and_the_docstring_of_its_function(function: Any, name: str) -> None:
    """In errors and metrics too: a setting is set by a partial function, and is one all the same."""
    fn = batched.dynamically(function, timeout_ms=0)
    assert fn("a") == "A"
    assert repr(fn).startswith(f"<batched {name}, ")
    assert (fn.__name__, fn.__doc__) == ("labels", "Return the texts as labels.")
    assert fn.__wrapped__ is function
    with pytest.raises(TypeError, match=f"{name}: upper=True cannot be passed in a call"):
        fn("a", upper=True)
    assert batched.dynamically(function, name="own").__name__ == "labels"
    fn.shutdown()


def test_a_name_of_ones_own_is_used_in_errors_and_thread_names() -> None:
    """Two batchers of one function can be told apart."""
    fn = batched.dynamically(lambda xs: None, timeout_ms=0, name="embed queries")
    with pytest.raises(TypeError, match="^embed queries must return"):
        fn(1)
    assert workers("embed queries")
    assert "embed queries" in repr(fn)


@pytest.mark.parametrize(("decorator", "kind", "extra"), DECORATORS)
def test_a_misspelt_option_is_told_the_nearest_name(decorator: Any, kind: Any, extra: Any) -> None:
    """In every place that takes options, and never with the name of a class that users do not know.

    Of one that another place takes, the message says where.
    """
    fn = decorator(len)
    for take, name, meant, can in (
        (decorator, "bach_size", "batch_size", "has batch_size, "),
        (fn.configure, "timeout", "timeout_ms", "can change .*batch_size, "),
        (decorator, "timeout", "timeout_ms", "has batch_size, "),
        (fn.options, "timeout", "deadline_ms", "has deadline_ms, "),
        (fn.options, "dedline_ms", "deadline_ms", "has deadline_ms, .*, request_cache$"),
    ):
        with pytest.raises(TypeError, match=rf"'{name}' \(did you mean '{meant}'\?\); it {can}"):
            take(**{name: 1})
        with pytest.raises(TypeError, match="'zzz'; it "):
            take(zzz=1)
    for take, name, place in (
        (decorator, "priority", r"which is an option of calls: fn\.options\(priority=\.\.\.\); it has "),
        # `which` is the option that was given, and not the one that may have been meant.
        (decorator, "deadline_ms", r"which is an .*=\.\.\.\) \(did you mean 'default_deadline_ms'\?\)"),
        (fn.configure, "priority", r"which is an option of calls: fn\.options\(priority=\.\.\.\); it can "),
        (fn.configure, "cache", "which only the decorator takes; it can change "),
        (fn.options, "cache", "which only the decorator takes; it has "),
        (fn.options, "batch_size", r"which the decorator takes and fn\.configure changes; it has "),
        (fn.options, "pad_token", r"which batched\.inference\.dynamically takes; it has "),
    ):
        with pytest.raises(TypeError, match=f"'{name}', {place}"):
            take(**{name: 1})
    for take in (fn.configure, fn.options):
        with pytest.raises(TypeError, match=rf"^{take.__name__}\(\) takes 1 positional"):
            take(64)
