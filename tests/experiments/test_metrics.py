from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from nacre.experiments.metrics import acc, bwt, mean_and_std

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
    assert (acc([[70.0]]), bwt([[70.0]])) == (70.0, 0.0)


def test_the_deviation_is_that_of_a_sample() -> None:
    assert mean_and_std([2.0, 4.0, 6.0]) == (4.0, 2.0)  # of a population it would be 1.63


def test_one_value_has_no_deviation() -> None:
    assert mean_and_std([3.5]) == (3.5, 0.0)


@given(matrices())
def test_acc_and_bwt_are_numpys(rows: list[list[float]]) -> None:
    matrix = np.array([[*row, *[0.0] * (len(rows) - len(row))] for row in rows])
    assert acc(rows) == pytest.approx(matrix[-1].mean(), abs=1e-9)
    forgotten = (matrix[-1] - matrix.diagonal())[:-1]
    assert bwt(rows) == pytest.approx(forgotten.mean() if len(forgotten) else 0.0, abs=1e-9)


@given(st.lists(PERCENT, min_size=2, max_size=10))
def test_means_and_deviations_are_numpys(values: list[float]) -> None:
    assert mean_and_std(values) == pytest.approx((np.mean(values), np.std(values, ddof=1)), abs=1e-9)
