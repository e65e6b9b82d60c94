"""Callers in several threads read their arrays at once."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np

from batched import inference
from batched._collate.signature import Signature
from tests.kit.gate import PATIENCE_S, Gate


def test_the_first_calls_of_a_signature_share_a_batch_though_they_come_at_once() -> None:
    """Neither knows the signature when it comes, and both have the same one."""
    both = threading.Barrier(2)
    seen = threading.local()

    class Padding(float):
        __hash__ = float.__hash__

        def __eq__(self, other: object) -> bool:
            if not hasattr(seen, "signature"):
                seen.signature = "is new"
                both.wait(PATIENCE_S)
            return super().__eq__(other)

    gate = Gate(lambda features: features["x"])
    fn = inference.dynamically(gate, batch_size=2, timeout_ms=60_000, adaptive=False, pad_token=Padding(1))
    with ThreadPoolExecutor(2) as pool:
        answers = [pool.submit(fn, {"x": np.ones((1, 3))}) for _ in range(2)]
        assert [answer.result(PATIENCE_S).tolist() for answer in answers] == [[[1.0] * 3]] * 2
    assert len(gate.batches) == 1
    fn.shutdown()


def test_a_feature_may_be_found_to_differ_while_another_caller_measures_its_rows() -> None:
    """The caller that goes through the features is not disturbed."""
    signature = Signature((), [])
    assert signature.length([3, 3, 3], [3, 3, 3]) == 3
    assert signature.length([4, 3, 3], [4, 3, 3]) == 4

    class Disturbed(list[int]):
        def __getitem__(self, index: Any) -> Any:
            signature.length([3, 5, 3], [3, 5, 3])
            return super().__getitem__(index)

    lengths = Disturbed([6, 3, 3])
    assert signature.length(lengths, lengths) == 6
    assert signature.length([3, 7, 3], [3, 7, 3]) == 7
