"""How the benches choose lengths, count outcomes, cut texts and judge quality."""

from __future__ import annotations

import math
import random

import pytest
from bench_quality import Tally, agreement, bar_cells, windows
from bench_swarm import LONG, SHORT, lengths, outcomes, percentile
from prose import paragraphs
from streams import Streamed


@pytest.mark.parametrize(
    ("percent", "wanted"), [(50, 5), (90, 9), (95, 10), (99, 10), (100, 10), (1, 1)]
)
def test_percentiles_are_values_that_came(percent: float, wanted: int) -> None:
    assert percentile([3, 1, 2, 5, 4, 9, 8, 7, 6, 10], percent) == wanted


def test_prompts_are_of_all_lengths() -> None:
    found = lengths(64, random.Random(1))
    assert found[:2] == [SHORT[0], LONG[1]]
    assert all(SHORT[0] <= n <= LONG[1] for n in found)
    assert 8 < sum(n >= LONG[0] for n in found) < 32
    assert lengths(1, random.Random(1)) == [SHORT[0]]


def test_refusals_at_the_door_are_no_failures() -> None:
    answers = [
        Streamed(0.0, status=200),
        Streamed(0.0, status=503, error="busy"),
        Streamed(0.0, status=429, error="busy"),
        Streamed(0.0, status=200, error="cut off"),
        Streamed(0.0, status=500, error="bug"),
    ]
    assert outcomes(answers) == {
        "answered": 1,
        "refused, 503": 1,
        "refused, 429": 1,
        "failed: cut off": 1,
        "failed: bug": 1,
    }


@pytest.mark.parametrize(("count", "size"), [(10, 4), (11, 4), (12, 4), (13, 4), (5, 5), (6, 5)])
def test_windows_predict_every_token_but_the_first_once(count: int, size: int) -> None:
    ids = list(range(count))
    predicted = [token for window in windows(ids, size) for token in window[1:]]
    assert predicted == ids[1:]
    assert all(2 <= len(window) <= size for window in windows(ids, size))


def test_quality_is_counted_over_all_tokens() -> None:
    tally = Tally([1, 2], [math.log(0.5), math.log(0.125)])
    assert tally.perplexity == pytest.approx(4.0)
    assert agreement([1, 2, 3, 4], [1, 2, 0, 4]) == 0.75


@pytest.mark.parametrize(
    ("name", "agreeing", "ratio", "met"),
    [
        ("int8 in float32", 0.97, 1.02, "yes"),
        ("int8 in float32", 0.969, 1.0, "no"),
        ("int8 in bfloat16", 0.99, 1.021, "no"),
        ("int4 in bfloat16", 0.91, 1.07, "yes"),
        ("float32", 0.5, 9.0, ""),
    ],
)
def test_quality_is_judged_by_both_figures(
    name: str, agreeing: float, ratio: float, met: str
) -> None:
    assert bar_cells(name, agreeing, ratio)[1] == met


def test_prose_leaves_code_tables_and_headings_out() -> None:
    sentence = "one two three four five six seven eight nine ten eleven twelve"
    page = f"""<html><head><title>{sentence}</title></head><body>
    <h1>Short heading</h1>
    <div class="para">{sentence} <b>bold</b><br>more</div>
    <pre>{sentence} <span>x<br></span> {sentence}</pre>
    <table><tr><td>{sentence}</td></tr></table>
    <p>{sentence}
    and a new line</p></body></html>"""
    assert paragraphs(page) == [f"{sentence} boldmore", f"{sentence} and a new line"]
