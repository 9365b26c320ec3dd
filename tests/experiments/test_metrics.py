from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacre.experiments.metrics import acc, bwt, forgetting, mean_and_std, printed, summarise

PERCENT = st.floats(0, 100)


@st.composite
def matrices(draw: st.DrawFn) -> list[list[float]]:
    """Row i has i + 1 accuracies."""
    count = draw(st.integers(1, 8))
    return [draw(st.lists(PERCENT, min_size=length, max_size=length)) for length in range(1, count + 1)]


def test_acc_is_the_mean_of_the_last_row_alone() -> None:
    assert acc([[100.0], [0.0, 50.0], [10.0, 20.0, 60.0]]) == 30.0


def test_bwt_is_how_far_each_task_fell_below_what_it_was_when_learnt() -> None:
    # task 0: 90 -> 70, task 1: 80 -> 85; the rows between do not count, nor does the last task
    assert bwt([[90.0], [10.0, 80.0], [70.0, 85.0, 33.0]]) == -7.5


def test_bwt_is_above_zero_where_later_tasks_help_earlier_ones() -> None:
    assert bwt([[50.0], [60.0, 70.0]]) == 10.0


def test_bwt_is_exactly_zero_where_nothing_changes() -> None:
    drawn = [0.1, 33.333333333333336, 89.04109589041096]
    assert bwt([drawn[:1], drawn[:2], drawn]) == 0.0


def test_one_task_cannot_forget() -> None:
    assert (acc([[70.0]]), bwt([[70.0]]), forgetting([[70.0]])) == (70.0, 0.0, 0.0)


def test_forgetting_is_how_far_each_task_fell_below_its_best() -> None:
    # task 0: best 95 after task 1, 70 in the end; task 1: best 80, 85 in the end, a gain; task 2 is the last
    assert forgetting([[90.0], [95.0, 80.0], [70.0, 85.0, 33.0]]) == (25 - 5) / 2


def test_forgetting_sees_a_fall_that_bwt_does_not() -> None:
    rows = [[50.0], [90.0, 60.0], [50.0, 60.0, 70.0]]  # what later tasks gave is lost again
    assert (bwt(rows), forgetting(rows)) == (0.0, 20.0)


def test_the_last_row_is_no_best_of_its_own() -> None:
    assert forgetting([[50.0], [60.0, 70.0]]) == -10.0


def test_numbers_are_printed_as_the_paper_prints_them() -> None:
    assert printed(86.1949, 0.3751) == "86.19(0.38)"
    assert printed(8.68123, 0.0456, 3) == "8.681(0.046)"
    assert printed(89.2) == "89.20"


def test_several_runs_become_means_and_deviations_and_one_stays_as_it_is() -> None:
    runs = [
        {"seed": seed, "acc": acc, "bwt": -1.0, "forgetting": 2.0, "megabytes": 0.5, "ranks": {}}
        for seed, acc in ((3, 80.0), (5, 90.0))
    ]
    both = summarise(runs)
    assert (both["acc"], both["bwt"], both["forgetting"], both["megabytes"]) == (85.0, -1.0, 2.0, 0.5)
    assert both["std"] == {"acc": pytest.approx(50**0.5), "bwt": 0.0, "forgetting": 0.0, "megabytes": 0.0}
    assert both["runs"] == runs
    assert summarise(runs[:1]) == runs[0]


def test_the_deviation_is_that_of_a_sample() -> None:
    assert mean_and_std([2.0, 4.0, 6.0]) == (4.0, 2.0)  # of a population it would be 1.63


def test_one_value_has_no_deviation() -> None:
    assert mean_and_std([3.5]) == (3.5, 0.0)


@given(matrices())
def test_acc_bwt_and_forgetting_are_numpys(rows: list[list[float]]) -> None:
    matrix = np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows])
    assert acc(rows) == pytest.approx(matrix[-1].mean(), abs=1e-9)
    forgotten = (matrix[-1] - matrix.diagonal())[:-1]
    assert bwt(rows) == pytest.approx(forgotten.mean() if len(forgotten) else 0.0, abs=1e-9)
    if len(rows) > 1:
        best = np.tril(matrix)[:-1, :-1].max(axis=0)  # accuracies are at least the zeros above the diagonal
        assert forgetting(rows) == pytest.approx((best - matrix[-1, :-1]).mean(), abs=1e-9)


@given(st.lists(PERCENT, min_size=2, max_size=10))
def test_means_and_deviations_are_numpys(values: list[float]) -> None:
    assert mean_and_std(values) == pytest.approx((np.mean(values), np.std(values, ddof=1)), abs=1e-9)
