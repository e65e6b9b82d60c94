"""The examples, run as their readers run them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parent.parent / "examples"
TIME_LIMIT_S = 280.0  # each takes about ten seconds on an idle machine, most of them for importing torch
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "FORCE_COLOR"}}


def run(name: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    example = subprocess.run(
        [sys.executable, EXAMPLES / name, *arguments],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env=ENVIRONMENT,
        timeout=TIME_LIMIT_S,
    )
    assert example.returncode == 0, example.stderr
    return example


@pytest.mark.model
@pytest.mark.timeout(300)
def test_embed_sentences_measures_all_three_ways_and_verifies_the_answers() -> None:
    """It prints a row for each way to embed the sentences, and compares every vector with the plain one."""
    example = run("embed_sentences.py", "--sentences", "40")
    for way in ("one by one", "32 callers, batched", "encode(whole list)"):
        rows = [line for line in example.stdout.splitlines() if line.startswith(f"  {way}") and "%" in line]
        assert len(rows) == 1, way
    assert "Mean batch size" in example.stdout
    assert "All 40 answers verified" in example.stdout


@pytest.mark.model
@pytest.mark.timeout(300)
def test_embed_features_measures_all_four_ways_and_verifies_the_answers() -> None:
    """It prints a row for each way to embed the sentences, and compares every vector with the one alone."""
    example = run("embed_features.py", "--sentences", "40")
    for way in ("one by one", "32 threads, batched", "32 tasks, batched", "padded by hand"):
        rows = [line for line in example.stdout.splitlines() if line.startswith(f"  {way}") and "%" in line]
        assert len(rows) == 1, way
    assert "Mean batch size" in example.stdout
    assert "All 40 answers verified" in example.stdout
