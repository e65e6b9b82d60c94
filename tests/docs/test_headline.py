"""The first pages have one set of figures: those of `python -m benchmarks headline --for-pages`."""

from __future__ import annotations

import re
from itertools import product

import pytest

from benchmarks.pages.headline import FILE, INKS, read, sentence, sentence_of_all, table
from tests.kit.script import ROOT

_, CELLS = read()


@pytest.mark.parametrize(
    "page", ["README.md", "docs/index.md", "docs/tutorial.md", "docs/reference/benchmarks.md"]
)
def test_each_first_page_has_the_same_sentence(page: str) -> None:
    text = " ".join((ROOT / page).read_text("utf-8").split())
    assert sentence(CELLS) in text


def test_the_tutorial_says_what_its_own_model_gains() -> None:
    assert sentence_of_all(CELLS) in " ".join((ROOT / "docs/tutorial.md").read_text("utf-8").split())


def test_the_page_of_benchmarks_has_the_whole_table() -> None:
    """And says when it was measured, on what."""
    text = (ROOT / "docs/reference/benchmarks.md").read_text("utf-8")
    assert table(CELLS) in text
    about, _ = read()
    assert about["about"]["date"][:10] in text


def test_all_of_it_was_measured_three_times_without_an_error() -> None:
    clients = {cell.clients for cell in CELLS}
    assert {(cell.model, cell.server, cell.clients) for cell in CELLS} == {
        *product(("wide", "minilm"), ("plain", "batched"), clients)
    }
    assert all(len(cell.rates) == len(cell.p99_s) == 3 for cell in CELLS)
    assert sum(cell.errors for cell in CELLS) == 0


@pytest.mark.parametrize("scheme", INKS)
def test_the_picture_shows_these_figures(scheme: str) -> None:
    """Those of the tutorial's own model."""
    drawn = FILE.with_name(f"first-{scheme}.svg").read_text("utf-8")
    labels = re.findall(r">([\d,.]+)</text>", drawn)
    wanted = [cell for cell in CELLS if cell.model == "minilm"]
    assert sorted(labels) == sorted(
        f"{figure:,.0f}" if figure >= 10 else f"{figure:.1f}"
        for cell in wanted
        for figure in (cell.rate, cell.p99_ms)
    )
