"""The examples, run as their readers run them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
import threading

import pytest

from tests.kit.gate import PATIENCE_S
from tests.kit.optional import needs_torch
from tests.kit.script import ROOT

EXAMPLES = ROOT / "examples"
TIME_LIMIT_S = 280.0  # each takes about ten seconds on an idle machine, most of them for importing torch
ENVIRONMENT = {name: value for name, value in os.environ.items() if name not in {"COLUMNS", "FORCE_COLOR"}}


@pytest.mark.parametrize("handlers", ["1", "50"])
def test_bulk_lookup_measures_both_ways_and_compares_the_answers(handlers: str) -> None:
    """It prints a row for each way to look up, and that every answer was the same."""
    pytest.importorskip("aiosqlite")
    example = subprocess.run(
        [sys.executable, EXAMPLES / "bulk_lookup.py", "--requests", "200", "--handlers", handlers],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={**ENVIRONMENT, "PYTHONPATH": str(EXAMPLES.parent)},
        timeout=50,
    )
    assert example.returncode == 0, example.stderr
    rows = [line.split() for line in example.stdout.splitlines() if line.startswith("  one query ")]
    assert rows[0][-1] == "200"
    assert [" ".join(row[:-2]) for row in rows] == ["one query each", "one query per batch"]
    assert int(rows[1][-1]) <= 200 // int(handlers) + 10
    assert "All 200 answers are the same." in example.stdout


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
def test_embed_sentences_measures_all_four_ways_and_verifies_the_answers() -> None:
    """It prints a row for each way to embed the sentences, and compares every vector with the plain one."""
    example = run("embed_sentences.py", "--sentences", "40")
    for way in ("one by one", "32 callers, batched", "32 callers, of like length", "encode(whole list)"):
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


@pytest.mark.model
@pytest.mark.timeout(300)
def test_a_text_of_the_service_has_one_vector_whatever_shares_its_batch() -> None:
    """Alone, in pairs, in any order, padded beside longer ones."""
    texts = ["a", "opening hours", "where is my parcel, it was to come on Monday", "how do I reset it?"]
    program = (
        "import embedding_service_model; from batched.testing import assert_independent; "
        f"assert_independent(embedding_service_model.embed, {texts}, rtol=1e-3, atol=1e-5)"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        check=True,
        env={**ENVIRONMENT, "PYTHONPATH": os.pathsep.join([str(EXAMPLES.parent), str(EXAMPLES)])},
        timeout=TIME_LIMIT_S,
    )


@needs_torch
@pytest.mark.timeout(120)
def test_generate_text_streams_to_every_caller_what_it_would_get_alone() -> None:
    """Seven callers, of which one leaves early, share batches, in both ways; every text is compared."""
    example = subprocess.run(
        [sys.executable, "-W", "error", EXAMPLES / "generate_text.py", "--characters", "30"],
        check=False,
        capture_output=True,
        encoding="utf-8",
        env={**ENVIRONMENT, "PYTHONPATH": str(EXAMPLES.parent)},
        timeout=110,
    )
    assert example.returncode == 0, example.stdout + example.stderr
    assert example.stdout.count(" | ") == 2 * 7
    assert example.stdout.count("(left early)") == 2
    assert "7 prompts, 0 joined a batch that ran" in example.stdout
    assert example.stdout.count("All 7 texts verified") == 2


@needs_torch
@pytest.mark.timeout(120)
def test_texts_that_join_a_batch_are_those_that_are_written_one_by_one() -> None:
    """Seven prompts wait before the first step, at most four have places, and the others join."""
    specification = importlib.util.spec_from_file_location("generate_text", EXAMPLES / "generate_text.py")
    assert specification is not None
    assert specification.loader is not None
    example = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(example)
    writer, queued = example.Writer(30), threading.Event()
    model = writer.model.forward

    def held(contexts: object) -> object:
        assert queued.wait(PATIENCE_S)
        return model(contexts)

    writer.model.forward = held
    prompts = ["the quick", "a lazy", "the fox", "a model", "callers", "the batch", "a dog"]
    streams = [writer.write_refilled.stream(prompt) for prompt in prompts]
    queued.set()
    texts = ["".join(stream) for stream in streams]
    assert texts == ["".join(writer.write.stream(prompt)) for prompt in prompts]
    assert len({*map(len, texts)}) > 2  # they end at different steps
    assert writer.write_refilled.stats.total_joined >= len(prompts) - 4
