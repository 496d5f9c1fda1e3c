"""Numbers are rounded, but never up to a perfect score."""

import math

import pytest

from statemix_lab.studies import result_text as numbers


@pytest.mark.parametrize(
    ("value", "text"),
    [(1.0, "1.000"), (1 - 1e-9, ".999"), (0.9994, ".999"), (1 / 6, ".167"), (0.0, ".000")],
)
def test_only_perfection_is_written_as_one(value, text):
    assert numbers.accuracy_text(value) == text


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1.001, -0.001])
def test_what_is_no_accuracy_has_no_text(value):
    with pytest.raises(ValueError, match=r"an accuracy must be in 0\.\.1, got"):
        numbers.accuracy_text(value)


@pytest.mark.parametrize(
    ("value", "text"), [(None, "–"), (1.0, "1.00"), (0.494, ".494"), (0.9, ".90")]
)
def test_published_numbers_have_the_decimals_of_papers(value, text):
    assert numbers.published_text(value) == text


@pytest.mark.parametrize(
    ("time_s", "text"),
    [
        (0.4, "0 s"),
        (59.4, "59 s"),
        (3599.4, "59 min 59 s"),
        (3599.6, "1 h 0 min"),
        (7199, "2 h 0 min"),
        (112_860, "31 h 21 min"),
    ],
)
def test_durations_have_minutes_and_hours_when_they_need_them(time_s, text):
    assert numbers.duration_text(time_s) == text
