"""The batches that run."""

from __future__ import annotations

from batched._core.call import Call
from batched._core.options import Options
from batched._drivers.manual_clock import ManualDriver
from tests.kit.batcher_rules import echo


def test_inputs_are_kept_while_a_part_runs_though_the_caller_has_taken_its_error() -> None:
    """A call that keeps errors was answered by the failure of its first part, and forgets what it got."""
    driver = ManualDriver(Options(batch_size=1, timeout_ms=0))
    call = Call().begin(echo, "three rows", 3, False, 0.0)
    call.keep_errors = True
    driver.push(call)
    batches = []
    for _ in range(3):
        assert driver.delay(0.0) == 0.0
        batches.append(driver.pop(0.0))
    assert driver.fail(batches[0], ValueError(), 1.0) == [call]
    call.results = None
    driver.finish(batches[1], 1.0)
    assert call.inputs == "three rows"
    driver.finish(batches[2], 1.0)
    assert call.inputs is None
