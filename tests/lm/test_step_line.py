"""The step line, and the costs that training prints before the first step."""

import math
import re
import shutil
from types import SimpleNamespace

import pytest
import torch
from tests.lm.conftest import build_model
from torch.utils.flop_counter import FlopCounterMode

from statemix.lm import run_reports
from statemix.lm.language_scores import summed_loss
from statemix.lm.model_costs import training_flops
from statemix.lm.run_reports import StepLine
from statemix.training import Event


@pytest.mark.parametrize("kind", ["bd_lru", "h_lru-conv-gate"])
def test_flops_are_those_of_the_matrix_products_of_a_step(kind):
    model = build_model(kind, conv_size=0, output_gate=True)
    with FlopCounterMode(display=False) as counter:
        summed_loss(model, torch.randint(0, 50, (2, 8))).backward()
    projections, recurrences = training_flops(model.config, 7)
    assert counter.get_total_flops() == 2 * 7 * projections
    assert 0 < recurrences < projections


class Slow:
    """Batches of steps of 10 s of a clock."""

    def __init__(self, monkeypatch):
        self.now = 50.0
        monkeypatch.setattr(run_reports, "time", SimpleNamespace(monotonic=lambda: self.now))

    def step(self):
        self.began = self.now
        self.now += 10.0


@pytest.fixture
def slow(monkeypatch):
    return Slow(monkeypatch)


def measured(slow, bytes_per_token=2.0):
    """A step line after two steps of 10 s, of which evaluations of 90 s are no part."""
    speeds = {"tokens_per_step": 400, "flops_per_token": 5.0, "matmul_speed": 1000.0}
    line = StepLine(slow, **speeds, bytes_per_token=bytes_per_token)
    line.on_start(SimpleNamespace(step=10))
    for _ in range(2):
        slow.step()
        line.after_step(None, 1.0)
        slow.now += 90.0
    return line


def test_the_line_has_loss_speed_utilisation_and_time_left(slow):
    line = measured(slow)
    event = line.describe(Event("step", 12, 100, loss=math.log(4)))
    assert event.text == (
        "loss 1.3863, 1.000 bits per byte, 40 tokens/s, utilisation 20%, about 2.4 h left"
    )
    saved = Event("saved", 12, 100, text="checkpoint")
    assert line.describe(saved) == saved
    assert "bits" not in measured(slow, None).describe(Event("step", 12, 100, loss=1.0)).text


def test_a_row_has_the_means_since_the_row_before(slow):
    line = measured(slow)
    wanted = {"tokens_per_s": 40.0, "utilisation": 0.2}
    assert line.row(None) == pytest.approx(wanted)
    # A run that resumes at its last step makes no step.
    assert line.row(None) == {"tokens_per_s": 0.0, "utilisation": 0.0}


def test_the_command_prints_costs_and_step_lines(train_tiny, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("statemix.training.progress.LINE_EVERY_S", 0.0)
    assert train_tiny("--steps", "3") == 0
    out, err = capsys.readouterr()
    assert re.search(r"8,648 parameters, 32 bytes of state per sequence, 0\.\d MFLOPs", out)
    assert re.search(r"192 tokens to read of 9,078: at least 0 s, .* at \d+ GFLOP/s", out)
    line = r"step 2 of 3: loss \d\.\d+, (\d\.\d+) bits per byte, [\d,]+ tokens/s, utilisation \d+%"
    bits = re.search(line + r", about 0 s left", err).group(1)
    # The held-out text is like the training text.
    assert float(bits) == pytest.approx(float(re.search(r"per_byte (\S+),", err).group(1)), rel=0.1)
    shutil.rmtree(tmp_path / "run")
    assert train_tiny("--steps", "1", "--attention-every", "1") == 0
    assert "bytes of state per sequence and a cache that grows, " in capsys.readouterr().out
