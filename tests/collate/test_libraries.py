"""Arrays of numpy and torch of every dtype, rank and kind; neither library has to be there."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from batched import inference
from tests.kit.company import company, is_numpy, is_torch, itself, same
from tests.kit.flavours import Flavour
from tests.kit.optional import HAS_TORCH, needs_torch, torch

ROOT = Path(__file__).parents[2]


# -- dtypes, ranks, rows ------------------------------------------------------------------------------------


NUMPY_KINDS = [
    *"?bBhHiIlLqQefdgFDG",
    ">i4",
    ">f8",
    "U5",
    "S3",
    ">U2",
    "M8[s]",
    "m8[ms]",
    "O",
    "V3",
    [("a", ">i4"), ("b", "U3")],
]


TORCH_KINDS = [
    torch.bool,
    torch.uint8,
    torch.int8,
    torch.int16,
    torch.int32,
    torch.int64,
    torch.float16,
    torch.bfloat16,
    torch.float32,
    torch.float64,
    torch.complex64,
    torch.complex128,
    torch.uint16,
    torch.uint32,
    torch.uint64,
]


@pytest.mark.parametrize("dtype", NUMPY_KINDS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_every_numpy_dtype_is_kept(dtype: Any, batch_size: int) -> None:
    """What the function sees and what comes back: byte order, units and fields too; padding is its zero."""
    dtype = np.dtype(dtype)
    short, long = np.zeros((2, 1), dtype), np.ones((2, 3), "i1").astype(dtype if dtype.kind != "V" else "i1")
    if dtype.kind == "V":
        long = np.zeros((2, 3), dtype)
    with company(itself, batch_size=batch_size, unpad_outputs=True) as there:
        answers = there.answers({"x": short}, {"x": long}, {"x": list(long)}, {"x": [short[0], long[0]]})
        assert all(batch["x"].dtype == dtype for batch in there.batches)
        assert [answer[0].dtype for answer in answers] == [dtype] * 4
        assert all(map(np.array_equal, answers[:3], [short, long, long]))
        assert all(map(np.array_equal, answers[3], [short[0], long[0]]))
        if batch_size == 8:
            assert np.array_equal(there.batches[0]["x"][0, 1:], np.zeros(2, dtype))


@pytest.mark.parametrize("dtype", TORCH_KINDS, ids=str)
@pytest.mark.parametrize("batch_size", [1, 3, 8])
def test_every_torch_dtype_is_kept(dtype: Any, batch_size: int) -> None:
    """What the function sees and what comes back."""
    short, long = torch.zeros(2, 1).to(dtype), torch.ones(2, 3).to(dtype)
    with company(itself, batch_size=batch_size, unpad_outputs=True) as there:
        answers = there.answers({"x": short}, {"x": long}, {"x": list(long)}, {"x": [short[0], long[0]]})
        assert all(batch["x"].dtype == dtype for batch in there.batches)
        assert [answer[0].dtype for answer in answers] == [dtype] * 4
        assert all(map(torch.equal, answers[:3], [short, long, long]))
        assert all(map(torch.equal, answers[3], [short[0], long[0]]))


def test_strings_of_other_lengths_make_one_call() -> None:
    """Rows of a list, and outputs of several batches, widen to the longest."""
    with company(itself, batch_size=1) as there:
        answer = there.answers({"x": [np.array("a"), np.array("abc")]})[0]
    assert same(answer, np.array(["a", "abc"]))
    numbers = iter([3, 5, 1])
    fn = inference.dynamically(lambda features: np.array(["x" * next(numbers)]), batch_size=1, timeout_ms=0)
    assert same(fn(x=np.zeros(3)), np.array(["xxx", "xxxxx", "x"]))


@pytest.mark.parametrize("shape", [(), (2,), (2, 3), (1, 2, 3, 1), (0,), (2, 0), (0, 2)], ids=str)
@pytest.mark.parametrize("make", [np.ones, torch.ones], ids=["numpy", "torch"])
def test_rows_of_every_rank_and_of_no_length(make: Any, shape: tuple[int, ...]) -> None:
    """From one scalar per row upwards, as arrays and as lists."""
    block = make((3, *shape))
    with company(itself, batch_size=4) as there:
        answers = there.answers(
            {"x": block}, {"x": list(block)} if is_torch(block) or shape else {"x": block}
        )
        assert all(same(answer, block) for answer in answers)


def test_a_scalar_per_row_travels_with_tokens(flavour: Flavour) -> None:
    """Features of one call may be of any ranks."""
    with company(
        lambda features: features["x"] * features["w"][:, None], unpad_outputs=True, flavour=flavour
    ) as there:
        short, long = there.answers(
            {"x": np.ones((1, 2)), "w": np.array([2.0])}, {"x": np.ones((2, 3)), "w": np.array([3.0, 4.0])}
        )
    assert same(short, np.full((1, 2), 2.0))
    assert same(long, np.array([[3.0] * 3, [4.0] * 3]))


# -- odd arrays ---------------------------------------------------------------------------------------------


ODD: dict[str, Callable[[], Any]] = {
    "broadcast": lambda: np.broadcast_to(np.arange(3), (2, 3)),
    "negative strides": lambda: np.arange(6).reshape(2, 3)[::-1, ::-1],
    "transposed": lambda: np.arange(6).reshape(3, 2).T,
    "read-only": lambda: np.frombuffer(b"abcdef", "u1").reshape(2, 3),
    "unaligned": lambda: np.frombuffer(b"x" + bytes(range(24)), "u1")[1:].view("i4").reshape(2, 3),
    "expanded": lambda: torch.arange(3).expand(2, 3),
    "parameter": lambda: torch.nn.Parameter(torch.ones(2, 3)),
    "conjugate": lambda: torch.tensor([[1 + 2j, 3j, 1]] * 2).conj(),
    "negative": lambda: torch.tensor([[1 + 2j, 3j, 1]] * 2).conj().imag,
    "strided": lambda: torch.arange(12).reshape(2, 6)[:, ::2],
}


@pytest.mark.parametrize("odd", ODD)
def test_odd_arrays_are_arrays(flavour: Flavour, odd: str) -> None:
    """Views of all kinds, alone, joined and padded; the function may write into what it gets."""

    def add(features: dict[str, Any]) -> Any:
        x = features["x"]
        assert is_torch(x) or (x.flags.writeable and x.flags.c_contiguous)
        with torch.no_grad() if is_torch(x) else nullcontext():
            x += 1
        return x

    x = ODD[odd]()
    want = x + 1 if is_numpy(x) else (x.detach() + 1).resolve_conj()
    for calls in ([x], [x, x], [x, x[:, :2]], [list(x)]):
        with company(add, unpad_outputs=True, flavour=flavour) as there:
            answer = there.answers(*({"x": call} for call in calls))[0]
            assert same(answer.detach() if is_torch(answer) else answer, want)
    assert (x + 1).tolist() == want.tolist()


@pytest.mark.filterwarnings("ignore:the matrix subclass:PendingDeprecationWarning")
@pytest.mark.parametrize("company_", [False, True])
def test_a_subclass_is_its_plain_array_alone_and_in_company(tmp_path: Path, company_: bool) -> None:
    """What a matrix, record array or memory map adds is lost, but never for reasons of company."""
    memmap = np.memmap(tmp_path / "x", shape=(2, 2), dtype="f4", mode="w+")
    records = np.rec.array([[(1,), (2,)]], dtype=[("a", "i4")])
    for odd in (memmap, records, np.matrix([[1, 2], [3, 4]])):
        with company(
            lambda features: np.full(len(features["x"]), type(features["x"]) is np.ndarray)
        ) as there:
            answers = there.answers(*[{"x": odd}] * (2 if company_ else 1))
            assert all(answer.all() for answer in answers)


class WithUnit(np.ndarray):
    """Refuses what numpy's functions would do to it, as arrays with units do to those without."""

    def __array_function__(self, function: Any, *_: Any, **__: Any) -> Any:  # type: ignore[override]
        raise TypeError(f"{function.__name__}: no unit")


class Marked(torch.Tensor if HAS_TORCH else object):  # type: ignore[misc]
    """Makes its own of each tensor that it is joined to."""


class Refusing(torch.Tensor if HAS_TORCH else object):  # type: ignore[misc]
    """Refuses to be joined, and to be written into another tensor."""

    @classmethod
    def __torch_function__(cls, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if function in {torch.cat, torch.Tensor.__setitem__}:
            raise TypeError("refused")
        return super().__torch_function__(function, types, args, kwargs or {})


KINDS: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any]]] = {
    "array with a unit": (np.ones, lambda x: x.view(WithUnit)),
    "tensor of a subclass": (torch.ones, lambda x: x.as_subclass(Marked)),
    "tensor that refuses": (torch.ones, lambda x: x.as_subclass(Refusing)),
}


@pytest.mark.parametrize("lengths", [(3,), (3, 3), (3, 2), (2, 3)])
@pytest.mark.parametrize("rows", [1, 2])
@pytest.mark.parametrize(("make", "made"), KINDS.values(), ids=KINDS)
def test_a_subclass_is_plain_to_the_function_and_does_nothing_to_other_calls(
    flavour: Flavour, make: Any, made: Any, rows: int, lengths: tuple[int, ...]
) -> None:
    """Its own way to join arrays is not used: it would change, or fail, the rows of its company."""
    plain = type(make(1))
    odd, *others = [{"x": make((rows, length))} for length in lengths]
    with company(
        lambda features: features["x"] * (2 if type(features["x"]) is plain else 3),
        unpad_outputs=True,
        isolate_errors=False,
        flavour=flavour,
    ) as there:
        answers = there.answers({"x": made(odd["x"])}, *others)
        assert len(there.batches) == 1
    for answer, call in zip(answers, [odd, *others], strict=True):
        assert same(answer, call["x"] * 2)


def test_the_memory_format_of_tensors_is_kept() -> None:
    """Alone and joined."""
    x = torch.ones(2, 3, 4, 4).to(memory_format=torch.channels_last)
    for calls in ([x], [x, x]):
        with company(lambda features: features["x"][:, 0, 0, 0]) as there:
            there.answers(*({"x": call} for call in calls))
            assert there.batches[0]["x"].is_contiguous(memory_format=torch.channels_last)


def test_tensors_without_data_go_through() -> None:
    """On the meta device nothing can be looked at, so nothing is."""
    x = torch.ones(2, 3, device="meta")
    with company(lambda features: {"y": features["x"] * 2}, batch_size=3, unpad_outputs=True) as there:
        for answer in there.answers({"x": x}, {"x": x[:, :2]}, {"x": list(x)}):
            assert answer["y"].device.type == "meta"


# -- libraries that are not there ---------------------------------------------------------------------------


BLOCKED = """
import sys

class Blocker:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] == BLOCKED:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Blocker())
from batched import inference
assert not {"numpy", "torch"} & set(sys.modules)
"""


def run_without(library: str, script: str) -> None:
    """Run `script` in a process where `library` cannot be imported."""
    result = subprocess.run(
        [sys.executable, "-W", "error", "-c", f"BLOCKED = {library!r}\n{BLOCKED}" + textwrap.dedent(script)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )
    assert (result.returncode, result.stderr) == (0, "")


def test_numpy_works_without_torch() -> None:
    """And neither is imported by the package itself."""
    run_without(
        "torch",
        """
        import numpy as np
        fn = inference.dynamically(lambda f: {"y": f["x"] * 2}, 2, 0, unpad_outputs=True)
        rows = [np.ones(1), np.ones(2), np.ones(3)]
        assert [row.tolist() for row in fn(x=rows)["y"]] == [[2], [2, 2], [2, 2, 2]]
        assert fn(x=np.ones((3, 2)))["y"].tolist() == [[2, 2]] * 3
        try:
            fn(x=[1])
        except TypeError as error:
            assert "'x' must be" in str(error)
        """,
    )


@needs_torch
def test_torch_works_without_numpy() -> None:
    """Padded, joined and cut."""
    run_without(
        "numpy",
        """
        import warnings
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            import torch
        fn = inference.dynamically(lambda f: {"y": f["x"] * 2}, 2, 0, unpad_outputs=True)
        rows = [torch.ones(1), torch.ones(2), torch.ones(3)]
        assert [row.tolist() for row in fn(x=rows)["y"]] == [[2], [2, 2], [2, 2, 2]]
        assert fn(x=torch.ones(3, 2))["y"].tolist() == [[2, 2]] * 3
        assert "numpy" not in sys.modules
        """,
    )
