"""The race of representations: lines that break between attempts, and marks of what happened."""

from statemix.training.attempts import Attempt
from statemix_lab.inspection.layer_pictures import draw_race
from statemix_lab.studies.figure import png

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
    """The points of the lines of a figure by colour, and the places of its vertical lines."""
    drawn = figure.axes[0].get_lines()
    upright = [float(line.get_xdata()[0]) for line in drawn if len(set(line.get_xdata())) == 1]
    curves = [line.get_xydata().tolist() for line in drawn if len(set(line.get_xdata())) > 1]
    return curves, upright


def texts(figure):
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_a_line_breaks_between_two_attempts():
    figure = draw_race(ROWS, "S_3", ATTEMPTS)
    curves, _ = lines(figure)
    assert [[step, step / 100] for step, _ in STEPS[:3]] in curves
    assert [[step, step / 100] for step, _ in STEPS[3:]] in curves
    assert png(figure, 40)[1:4] == b"PNG"


def test_marks_show_where_attempts_left_the_plateau_and_where_one_passed():
    figure = draw_race(ROWS, "S_3", ATTEMPTS)
    assert lines(figure)[1] == [15, 52, 58]
    assert {"1'", "2, the points", "off the plateau", "passed"} == texts(figure)
    failed = draw_race(ROWS[:3], "S_3", [Attempt(0, None, 40, 0.1)])
    assert lines(failed)[1] == []
    assert "passed" not in texts(failed)
