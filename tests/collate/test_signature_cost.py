"""A signature that no call has any more costs nothing."""

from __future__ import annotations

import numpy as np

from batched import inference
from batched._collate.signature import Signatures
from tests.kit.gate import PATIENCE_S, Gate
from tests.kit.kept import batchers, kept_by, size_of


def test_a_signature_that_no_call_has_any_more_costs_nothing() -> None:
    """A thousand kinds of calls are served, each in full batches, and then forgotten."""
    gate = Gate(lambda features: next(iter(features.values())), shut=True, note=dict)
    fn = inference.dynamically(gate, batch_size=2, timeout_ms=0)
    fn.submit(hold=np.zeros(2))
    gate.wait_for_batch()
    futures = [fn.submit({key: np.full(1, key)}) for _ in range(2) for key in range(3000)]
    gate.open()
    for number, future in enumerate(futures):
        assert future.result(PATIENCE_S).tolist() == [number % 3000]
    assert [len(features[key]) for features in gate.batches[1:] for key in features] == [2] * 3000
    (batcher,) = batchers(fn)
    assert size_of(batcher.queue) == 0
    (signatures,) = kept_by(fn, Signatures)
    del futures, future  # their calls know their signatures
    assert len(signatures.known) <= 1024
