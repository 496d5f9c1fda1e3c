"""Rows as ``statemix bench layers`` stores them."""

import json

import pytest


def _row(layer, *, hidden_size, batch_size, length, time_s=1.0, **changes):
    name, *options = layer.split()
    options = [word for word in options if word != "compiled"]
    values = dict(word.split("=") for word in options)
    values = {name: int(text) if text.isdecimal() else text for name, text in values.items()}
    backend = {"backend": None} if name == "bd_lru" else {}
    return {
        "benchmark": "layers",
        "case": {"hidden_size": hidden_size, "batch_size": batch_size, "length": length},
        "dtype": "float32",
        "layer": {"name": name, **backend, **values},
        "label": f"BD-LRU m={values['block_size']}" if name == "bd_lru" else name.upper(),
        "compiled": layer.endswith(" compiled"),
        "num_parameters": 1000,
        "provider": layer,
        "status": "measured",
        "reason": "",
        "time_s": {"p20": 0.5 * time_s, "p50": time_s, "p80": 2.0 * time_s},
        "ratios": {} if name == "lstm" else {"lstm": {"p20": 1.0, "p50": 3.0, "p80": 4.0}},
        "commit": "abcdef0123",
        "tree_clean": True,
        "cpu": "AMD EPYC",
        "threads": 2,
        "device": "cpu",
        "graphs": False,
        **changes,
    }


@pytest.fixture
def row():
    """Return a function that makes a row."""
    return _row


@pytest.fixture
def write(tmp_path):
    """Return a function that writes rows into a file and returns its path."""

    def write(rows, name="rows.jsonl"):
        path = tmp_path / name
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return path

    return write
