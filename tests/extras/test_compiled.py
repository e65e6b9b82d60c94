"""A compiled model meets no new shape after `warm_up`: torch counts what it compiles."""

from __future__ import annotations

import json

import pytest

from tests.kit.optional import needs_torch
from tests.kit.script import run_script

SCRIPT = """
import json, random, warnings
warnings.simplefilter("ignore")  # those of torch's compiler
import torch
from torch._dynamo.utils import counters
from batched import inference

BACKEND, BATCHES = {backend!r}, {batches}
model = torch.nn.Sequential(torch.nn.Embedding(100, 8), torch.nn.Linear(8, 4)).eval()
options = dict(batch_sizes=(1, 4, 16), pad_to_lengths=(4, 16)) if {fixed} else dict(batch_size=16)
compiled = torch.compile(model, dynamic=False, backend=BACKEND, recompile_limit=1000)


@inference.dynamically(**options, timeout_ms=0, unpad_outputs=True)
def embed(features):
    with torch.inference_mode():
        return compiled(features["ids"])


def graphs():
    return counters["stats"]["unique_graphs"]


draw = random.Random(1)
if {fixed}:
    embed.warm_up({{"ids": torch.tensor([[1, 2, 3]])}})
    assert graphs() == len(embed.shapes()) == 6
before = graphs()
for _ in range(BATCHES):
    rows = [torch.randint(1, 100, (draw.randint(1, 16),)) for _ in range(draw.randint(1, 16))]
    answers = embed({{"ids": rows}})
    assert all(torch.allclose(answer, model(row), atol=1e-5) for answer, row in zip(answers, rows))
stats = embed.stats
assert stats.total_batches >= BATCHES
assert (stats.copies_percent > 0) == {fixed}
print(json.dumps(graphs() - before))
"""


def recompilations(batches: int, *, fixed: bool, backend: str) -> int:
    """Return how many graphs torch has compiled in so many random batches, after a warm-up if fixed."""
    script = SCRIPT.format(batches=batches, fixed=fixed, backend=backend)
    found: int = json.loads(run_script(script, timeout=240.0).splitlines()[-1])
    return found


@needs_torch
@pytest.mark.model
def test_nothing_is_traced_anew_after_a_warm_up_and_without_fixed_sizes_nearly_each_batch_is() -> None:
    """Of graphs alone: no compiler is needed."""
    assert recompilations(1000, fixed=True, backend="eager") == 0
    assert recompilations(20, fixed=False, backend="eager") > 10


@needs_torch
@pytest.mark.model
def test_nothing_is_compiled_anew_in_a_thousand_random_batches_after_a_warm_up() -> None:
    """By torch's own compiler, which needs one for C++."""
    assert recompilations(1000, fixed=True, backend="inductor") == 0


@needs_torch
@pytest.mark.model
def test_a_method_may_be_called_by_what_torch_compiles() -> None:
    """The call is not traced, and the answer is that of a plain call."""
    run_script(
        """
        import logging, torch, warnings
        logging.disable()  # torch says what it does not trace
        warnings.simplefilter("ignore")

        class Model:
            @batched.dynamically(timeout_ms=0)
            def embed(self, rows):
                return [row * 2 for row in rows]

        model, row = Model(), torch.ones(3)
        for ask in (lambda: model.embed(row), lambda: model.embed([row])[0], lambda: Model.embed(model, row)):
            model.embed(row)  # later views of an instance are made without its class's `__init__`
            compiled = torch.compile(lambda: ask() + 1, backend="eager")
            assert compiled().tolist() == [3.0, 3.0, 3.0]
        """,
        timeout=240.0,
    )
