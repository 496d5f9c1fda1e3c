"""The race of representations: lines that break between attempts, and marks of what happened."""

import math

from statemix.studies.figures import png
from statemix.studies.inspection import race
from statemix.training.attempts import Attempt

# Two attempts: the first one is given up at step 40.
STEPS = [(10, 1), (20, 1), (40, 1), (50, 2), (60, 2)]
ROWS = [
    {"step": step, "attempt": attempt, "representations": {"1'": 0.3, "2": step / 100}}
    for step, attempt in STEPS
]
ATTEMPTS = [
    Attempt(0, left=15, ended=40, accuracy=0.2),
    Attempt(40, left=52, ended=58, accuracy=1.0, passed=True),
]


def lines(figure):
    """The thick lines of a figure, and its vertical lines."""
    drawn = figure.axes[0].get_lines()
    upright = [float(line.get_xdata()[0]) for line in drawn if len(set(line.get_xdata())) == 1]
    named = {line.get_label(): line.get_xydata().tolist() for line in drawn}
    return named, upright


def test_a_line_breaks_between_two_attempts():
    figure = race.draw(ROWS, "S_3", ATTEMPTS)
    named, _ = lines(figure)
    points = named["2, the points"]
    kept = [point for point in points if not math.isnan(point[1])]
    assert kept == [[step, step / 100] for step, _ in STEPS]
    (gap,) = (place for place, point in enumerate(points) if math.isnan(point[1]))
    assert 40 < points[gap][0] < 50
    # The thin line of the only run breaks, too.
    alone = [line for line in figure.axes[0].get_lines() if len(line.get_xdata()) == len(points)]
    assert len(alone) == 4
    assert all(math.isnan(line.get_ydata()[gap]) for line in alone)
    assert png(figure, 40)[1:4] == b"PNG"


def test_one_attempt_is_one_line_without_marks():
    for attempt in (None, 1):
        rows = [{**row, "attempt": attempt} for row in ROWS]
        named, upright = lines(race.draw(rows, "S_3"))
        assert named["2, the points"] == [[step, step / 100] for step, _ in STEPS]
        assert upright == []


def test_marks_show_where_attempts_left_the_plateau_and_where_one_passed():
    figure = race.draw(ROWS, "S_3", ATTEMPTS)
    assert lines(figure)[1] == [15, 52, 58]
    texts = {text.get_text(): text.xy[0] for text in figure.axes[0].texts}
    assert (texts["off the plateau"], texts["passed"]) == (52, 58)
    failed = race.draw(ROWS[:3], "S_3", [Attempt(0, None, 40, 0.1)])
    assert lines(failed)[1] == []
    assert "passed" not in {text.get_text() for text in failed.axes[0].texts}


def test_an_attempt_of_one_point_can_be_seen():
    for rows, marked in ((ROWS, False), (ROWS[:4], True)):
        drawn = race.draw(rows, "S_3").axes[0].get_lines()
        (line,) = (line for line in drawn if line.get_label() == "2, the points")
        assert (line.get_marker() != "None") == marked
