"""Every number of the prose comes from the configuration."""

import pytest

from statemix.studies.demo import demo_prose as prose
from statemix.studies.demo import demo_suite as demo


def protocol(summary):
    return dict(prose.protocol(summary))


def test_the_protocol_of_the_demo(summary):
    assert protocol(summary) == {
        "Training data": "250 examples, different for each seed, of length 16",
        "Start token": "a learned one before every word",
        "Network": "embedding, 1 layer (rms norm before each, with residual; channel mixer: none), "
        "norm, linear readout; width 128",
        "Initial values": "embedding N(0, 0.02²), biases 0",
        "Optimiser": "AdamW, learning rate 0.001, weight decay 0.01, batches of 128",
        "Schedule": "cosine to 1e-05 over 100 epochs",
        "Gates": "raw gates are divided by a temperature that falls to 1/8 between epochs 50 and "
        "90 (its reciprocal rises linearly); the tests use its last value; "
        "no gate temperature: LSTM",
        "Tests": "the last weights, on words from a separate split",
    }


def test_the_protocol_follows_the_configuration(summary):
    config = summary["protocol"]
    config["optimizer"]["weight_decay"] = 0.25
    config["model"] |= {"bos": False, "num_layers": 2, "channel_mixer": {"name": "swiglu"}}
    config["schedules"]["learning_rate"] = "constant"
    summary["setting"]["sharpening"] = None
    found = protocol(summary)
    assert "weight decay 0.25" in found["Optimiser"]
    assert found["Start token"] == "none"
    assert "2 layers" in found["Network"]
    assert "channel mixer: swiglu" in found["Network"]
    assert found["Schedule"] == "constant over 100 epochs"
    assert "Gates" not in found
    differences = " ".join(prose.differences(summary))
    assert "start token" not in differences
    assert "sharpened" not in differences


@pytest.mark.parametrize(("end", "text"), [(0.125, "1/8"), (0.1, "1/10"), (0.3, "0.3")])
def test_the_sharpening_is_described_from_its_schedule(summary, end, text):
    summary["setting"]["sharpening"]["end"] = end
    assert f"falls to {text} between" in protocol(summary)["Gates"]
    assert f"falls to {text}." in prose.differences(summary)[1]


def test_another_group_makes_no_claim_about_the_first(summary):
    claim = "it does learn words of the training length"
    assert claim in " ".join(prose.differences(summary))
    other = demo.summarize(demo.SUITES["S_5"], [])
    assert claim not in " ".join(prose.differences(other))
    assert protocol(other)["Training data"] == "fresh words in every batch, of length 16"
    assert "between steps 1,500 and 2,700" in protocol(other)["Gates"]


def test_networks_are_described_by_their_state(summary):
    assert [prose.kind(summary, run) for run in summary["runs"][:4]] == [
        "64 blocks of 3",
        "64 blocks of 2",
        "64 blocks of 1, diagonal",
        "128 units",
    ]
