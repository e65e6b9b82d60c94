"""`prepare` and `finish` without a driver: how they are found, and what the steps of a batch are."""

from __future__ import annotations

import inspect
from functools import partial, wraps
from typing import Any

import pytest

from batched._collate.lists import ListCollator
from batched._core.batch import Batch
from batched._core.options import Options
from batched._parts.stages import StagedCollator, first_of, found, is_method_beside, note_stage


def tokenize(texts: list[str]) -> list[int]:
    """Prepare, as a plain function."""
    return [len(text) for text in texts]


def decorated(function: Any) -> Any:
    """Wrap a function, as decorators do."""

    @wraps(function)
    def wrapper(*args: Any, **named: Any) -> Any:
        return function(*args, **named)

    return wrapper


class Model:
    """With methods that may be stages."""

    def before(self, texts: list[str]) -> tuple[str, list[str]]:
        """Prepare."""
        return "before", texts

    @decorated
    def wrapped(self, texts: list[str]) -> tuple[str, list[str]]:
        """Prepare, decorated."""
        return "wrapped", texts

    @staticmethod
    def without(texts: list[str]) -> tuple[str, list[str]]:
        """Prepare, without an instance."""
        return "without", texts

    def run(self, inputs: Any) -> Any:
        """Be the batch function."""
        return inputs

    inline = lambda texts: ("inline", texts)  # noqa: E731


class Other:
    """With a method of another class."""

    def before(self, texts: list[str]) -> list[str]:
        """Prepare something else."""
        return texts


@pytest.mark.parametrize(
    ("stage", "answer"),
    [
        ("before", "before"),
        (Model.before, "before"),
        (Model.wrapped, "wrapped"),
        (Model.without, "without"),
        (Model.__dict__["without"], "without"),
        (Model.inline, "inline"),
        (partial(Model.before, Model()), "before"),
    ],
)
def test_a_stage_is_found_on_the_instance_or_is_a_function_of_the_items(stage: Any, answer: str) -> None:
    model = Model()
    assert found(stage, model.run, model)(["a"]) == (answer, ["a"])


def test_only_functions_of_the_same_class_are_methods() -> None:
    model = Model()
    assert is_method_beside(Model.before, model.run)
    assert is_method_beside(Model.before, decorated(Model.run))
    assert not is_method_beside(Other.before, model.run)
    assert not is_method_beside(tokenize, model.run)
    assert not is_method_beside(tokenize, decorated(tokenize))
    assert not is_method_beside(len, model.run)
    assert not is_method_beside(Model.before, len)


def test_the_first_stage_says_which_parameters_callers_see() -> None:
    model = Model()
    options = Options(prepare="before")
    assert first_of(Model.run, options, "f", model, bound=True) == (model.before, False)
    assert first_of(Model.run, Options(prepare=Model.before), "f", model, bound=True) == (Model.before, True)
    assert first_of(Model.run, Options(prepare=tokenize), "f", model, bound=True) == (tokenize, False)
    assert first_of(Model.run, Options(finish=tokenize), "f", model, bound=True) == (Model.run, True)
    with pytest.raises(TypeError, match="names a method, but f is a plain function"):
        first_of(tokenize, options, "f", None, bound=False)
    with pytest.raises(TypeError, match="Model has no method of that name, for f"):
        first_of(Model.run, Options(finish="after"), "f", model, bound=True)


class View:
    """A decorated function, as a collator sees it."""

    def __init__(self, function: Any) -> None:
        self.__wrapped__ = function


def test_a_batch_runs_step_by_step() -> None:
    collator = StagedCollator(ListCollator("f"), Options(prepare=tokenize, finish=list))
    view: Any = View(lambda numbers: dict.fromkeys(numbers))
    call = collator.read(view, (["a", "bcd"],), {}, 0.0)
    steps = Batch([(call, 0, 2)], 2).run(collator)
    prepared = steps.prepare()
    assert prepared == [1, 3]
    steps.prepared(prepared)
    assert steps.finish(steps.run()) == [1, 3]
    assert steps.prepares is tokenize
    assert steps.finishes is list


def test_without_prepare_the_function_gets_the_items() -> None:
    collator = StagedCollator(ListCollator("f"), Options(finish=list))
    view: Any = View(tuple)
    call = collator.one(view, ("a",), {}, 0.0)
    steps = Batch([(call, 0, 1)], 1).run(collator)
    assert steps.prepares is None
    assert steps.run() == ("a",)


def test_what_a_call_is_passed_by_name_is_a_parameter_of_the_first_stage() -> None:
    collator = StagedCollator(ListCollator("f"), Options(prepare=tokenize))
    view: Any = View(lambda numbers: numbers)
    call = collator.read(view, (), {"texts": ["a"]}, 0.0)
    assert call.inputs == ["a"]
    assert list(inspect.signature(call.function.__wrapped__).parameters) == ["texts"]


def test_a_note_names_the_last_stage_only_and_leaves_others_as_they_are() -> None:
    error = ValueError()
    error.add_note("mine")
    batch = Batch([], 3)
    note_stage(error, "prepare", batch)
    batch.size = 1
    note_stage(error, "finish", batch)
    assert error.__notes__ == ["mine", "while finishing a batch of 1 item"]


def test_an_error_that_takes_no_notes_is_raised_as_it_is() -> None:
    class Refuses(Exception):
        """It has a mind of its own."""

        def add_note(self, note: str) -> None:
            """Refuse."""
            raise TypeError(note)

    note_stage(Refuses(), "function", Batch([], 1))
