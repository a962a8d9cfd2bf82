"""Least squares against values worked out by hand."""

import numpy as np
import pytest

from trace_analyze.analysis.numeric.fits import least_squares


def test_a_line_through_four_points():
    x, y = np.array([0.0, 1.0, 2.0, 3.0]), np.array([1.0, 3.0, 5.0, 8.0])
    fit = least_squares(np.column_stack([np.ones(4), x]), y)
    assert fit.coefficients == pytest.approx([0.8, 2.3])
    assert fit.residuals == pytest.approx([0.2, -0.1, -0.4, 0.3])
    # squares sum to 0.30 over two degrees of freedom; sum of squared distances of x from its mean: 5
    assert fit.standard_errors[1] == pytest.approx((0.15 / 5) ** 0.5)


def test_columns_that_say_the_same_are_no_fit():
    assert least_squares(np.ones((5, 2)), np.arange(5.0)) is None


def test_as_many_columns_as_rows_are_no_fit():
    assert least_squares(np.array([[1.0, 0.0], [1.0, 1.0]]), np.array([1.0, 2.0])) is None
