"""The table of which tests ask for which feature: it names what there is, and every feature."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.kit.asks_for import ASKS_FOR
from tests.kit.left_out import COUNTED, KINDS
from tests.kit.shared_workers import OWN_WORKERS
from tests.kit.through_socket import ONE_PROCESS

ROOT = Path(__file__).parents[2]
CONTRACT = {file.name: file.read_text("utf-8") for file in (ROOT / "tests/contract").glob("test_*.py")}


def test_each_feature_is_in_the_table_and_in_the_session_unless_each_run_leaves_it_out() -> None:
    assert ASKS_FOR.keys() == KINDS.keys() | {OWN_WORKERS, ONE_PROCESS}
    noxfile = ROOT / "noxfile.py"
    if not noxfile.exists():
        pytest.skip("a distribution has no sessions")
    (listed,) = re.findall(r"^FEATURES = \(([^)]+)\)$", noxfile.read_text("utf-8"), re.MULTILINE)
    left_out = {kind.__name__ for kind in COUNTED}
    assert {*re.findall(r"\w+", listed)} == KINDS.keys() - left_out


@pytest.mark.parametrize("name", ASKS_FOR)
def test_what_asks_for_a_feature_is_there(name: str) -> None:
    """A file or a test of what every flavour promises, which no file of the same list has already."""
    asked = ASKS_FOR[name]
    files = [each for each in asked if each.endswith(".py")]
    assert {*files} <= CONTRACT.keys()
    others = "".join(text for file, text in CONTRACT.items() if file not in files)
    missing = [test for test in asked if test not in files and f"def {test}(" not in others]
    assert not missing
