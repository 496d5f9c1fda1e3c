"""``statemix report bench`` prints what was measured, draws it, and names what is missing."""

import json

import pytest

from statemix.cli.main import main

LAYERS = ["--layers", "conv", "kernel_size=2", "--rounds", "3"]


@pytest.fixture(autouse=True)
def _somewhere(process_kept, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def rows(tmp_path, capsys):
    """Measure two lengths at hidden size 768; return the file."""
    path = tmp_path / "laboratory" / "results" / "bench" / "layers.jsonl"
    sizes = ["--hidden-size", "768", "--batch-size", "1", "--length", "2", "4"]
    assert main(["bench", "layers", *LAYERS, *sizes, "--output", str(path)]) == 0
    capsys.readouterr()
    return path


def test_measured_rows_become_a_figure_and_tables(rows, tmp_path, printed_by):
    cpu = {"cpu": "A  CPU (8)", "threads": 2}
    stored = [json.loads(line) for line in rows.read_text().splitlines()]
    rows.write_text("".join(json.dumps(row | cpu) + "\n" for row in stored))
    text = printed_by(["report", "bench"])
    assert text.startswith("A  CPU (8), 2 threads, float32\n\n(B) hidden size 768\nB = 1\n")
    assert "\nleft out: (A) BD-LRU of 128 blocks, against block size m: fewer than two" in text
    assert text.count("left out: ") == 4
    assert text.count("\nConvolution K=2  ") == text.count("\nLSTM  ") == 2
    path = tmp_path / "report" / "throughput-a-cpu-8-2-threads-float32.png"
    assert "\nwrote report/throughput-a-cpu-8-2-threads-float32.png\n" in text
    assert path.read_bytes().startswith(b"\x89PNG")


def test_each_setting_has_a_figure_in_the_folder_asked_for(
    rows, tmp_path, capsys, printed_by, refused
):
    stored = [json.loads(line) for line in rows.read_text().splitlines()]
    other = tmp_path / "other.jsonl"
    gpu = {"device": "A GPU", "dtype": "bfloat16"}
    other.write_text("".join(json.dumps(row | gpu) + "\n" for row in stored))
    assert main(["report", "bench", str(rows), str(other), "--output", "figures"]) == 0
    assert len(list((tmp_path / "figures").iterdir())) == 2
    assert (tmp_path / "figures" / "throughput-a-gpu-bfloat16.png").exists()
    capsys.readouterr()
    # Two lengths make a panel.
    rows.write_text(rows.read_text().splitlines()[0] + "\n")
    text = printed_by(["report", "bench"])
    assert text.count("left out: ") == 5
    assert "wrote" not in text
    assert not list((tmp_path / "report").iterdir())
    refused(["report", "bench", "--output", str(rows)], "output must be a writable folder, got")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("bench none.jsonl", "files must be readable, got 'none.jsonl' (No such file"),
        ("bench ops.jsonl", "files must hold rows of `statemix bench layers`, got none in ops.jso"),
        ("bench ops.jsonl --json", "json must not be used with bench"),
        ("cells ops.jsonl", "files must be given for bench alone, got ops.jsonl"),
    ],
)
def test_bad_requests_are_one_line(tmp_path, refused, arguments, message):
    (tmp_path / "ops.jsonl").write_text('{"benchmark": "ops"}\n')
    refused(["report", *arguments.split()], f"statemix: {message}")
