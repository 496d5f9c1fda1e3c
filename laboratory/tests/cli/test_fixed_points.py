"""``statemix reproduce`` and ``report`` with the suites of fixed points."""

import io
import json
import re
import tarfile

import pytest

from statemix.cli.main import main
from statemix.layers import LayerSpec
from statemix.tasks import TaskSpec
from statemix.training import BatchConfig, EvaluationConfig, ModelConfig, RunConfig, ScheduleConfig
from statemix.training.settings import Assignments
from statemix_lab.studies import study as catalogue
from statemix_lab.studies.fixed_points import fixed_point_studies
from statemix_lab.studies.fixed_points.fixed_point_studies import STUDIES, FixedPointStudy
from statemix_lab.studies.fixed_points.fixed_point_suites import ARCHIVE
from statemix_lab.studies.study_entries import SIZES, Number, StudyEntry, Trial, Trials


def conditions(protocol, size):
    def run(layer, seed, **evaluation):
        return RunConfig(
            task=TaskSpec("permutation", group="S_3", length=6, min_length=2),
            model=ModelConfig(layers=(layer,), hidden_size={"laptop": 4}.get(size, 8)),
            batches=BatchConfig(size=8),
            schedules=ScheduleConfig(num_steps=2),
            evaluation=EvaluationConfig(test_size=8, validation_size=8, lengths=(9,), **evaluation),
            seed=seed,
        )

    def runs(layer, **evaluation):
        found = tuple(run(layer, seed, **evaluation) for seed in range(3))
        return Trials(lambda: [Trial("", found)])

    iterating = LayerSpec("fp_rnn", max_iterations=2)
    long = {"attributes": Assignments(max_iterations=50)}
    published = {9: Number(0.17, 12)}
    return (
        StudyEntry("S_3", "FP-RNN", runs(iterating, **long), size=size, published=published),
        StudyEntry("S_3", "LSTM", runs(LayerSpec("lstm")), size=size),
    )


@pytest.fixture(autouse=True)
def tiny(monkeypatch, tmp_path):
    """The suite fp-budget with two models of S_3 and runs of a fraction of a second."""
    study = FixedPointStudy("fp-budget", "tiny", conditions, sizes=SIZES, paper="Movahedi et al.")
    found = tuple(study if one.name == "fp-budget" else one for one in STUDIES)
    monkeypatch.setattr(fixed_point_studies, "STUDIES", found)
    monkeypatch.setattr(catalogue, "_own", lambda: {one.name: one for one in found})
    monkeypatch.chdir(tmp_path)


def test_a_suite_is_run_shown_and_reported(capsys, printed_by, tmp_path):
    command = ["reproduce", "fp-budget", "--workers", "1"]
    out = printed_by([*command, "--models", "LSTM"])
    assert "fp-budget, protocol paper, size laptop: 1 cell, 3 runs" in out
    out = printed_by(command)
    assert "2 cells, 6 runs, of which 3 are in reproduce/runs.jsonl" in out
    ours, paper, lstm = (line for line in out.splitlines() if re.match(" *(S_3|paper) ", line))
    assert re.search(r"FP-RNN +3 of 3 +\.\d+ .*@\d+ +\.\d+ .*@\d+ [=<>]", ours)
    assert paper.split() == ["paper", ".17", "@12"]
    assert "@" not in lstm
    assert (tmp_path / "reproduce/fp-budget-laptop.png").exists()
    assert "to do" not in printed_by(command)

    assert main(["report", "cells", "--results", "reproduce", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["fixed_point"]
    assert (found["measured"], found["of"]) == (1, 25)
    out = printed_by(["report", "cells", "--results", "reproduce"])
    assert f"1 of 25 figures of Movahedi et al. measured, {found['agree']} agree" in out
    assert re.search(r"^fp-budget +S_3 +FP-RNN +9 +paper +laptop +3 +\.\d+ +\.17 +\w+$", out, re.M)

    assert main(["report", "--results", "reproduce", "--output", "page.html"]) == 0
    html = (tmp_path / "page.html").read_text()
    section = html[html.index('id="fp-budget-laptop"') :]
    assert 'fp-budget: tiny, size "laptop"' in section.replace("&#34;", '"')
    assert section.count('<tr><th scope="row"><code>') == 6
    assert "Of 25 numbers of Movahedi et al. we have measured 1 with" in html
    assert 'id="fp-budget-paper"' not in html


@pytest.mark.parametrize(
    ("request_", "message"),
    [
        (["fp-budget", "--protocol", "tuned"], "protocol must be paper with fp-budget, got"),
        (["fp-budget", "--columns", "A_5"], r"columns must be among \['S_3'\], got 'A_5'"),
        (["catbabi"], r"catbabi needs tasks_1-20_v1-2\.tar\.gz in the current folder, got none"),
    ],
)
def test_bad_requests_are_one_line(capsys, tmp_path, request_, message):
    assert main(["reproduce", *request_]) == 2
    assert re.search(message, capsys.readouterr().err)
    assert not list(tmp_path.iterdir())


def test_an_archive_without_enough_stories_is_one_line(capsys, refused, tmp_path):
    (tmp_path / ARCHIVE).write_bytes(b"none")
    refused(["reproduce", "catbabi"], "task: folder must be a folder or a complete .tar.gz")
    # Stories of nine tokens.
    text = "1 A box holds it.\n2 What?\tball\t1\n" * 200
    with tarfile.open(tmp_path / ARCHIVE, "w:gz") as packed:
        for split in ("train", "valid", "test"):
            member = tarfile.TarInfo(f"tasks_1-20_v1-2/en-valid-10k/qa1_{split}.txt")
            member.size = len(text)
            packed.addfile(member, io.BytesIO(text.encode()))
    for options in ([], ["--dry-run"]):
        assert main(["reproduce", "catbabi", "--size", "workstation", *options]) == 2
        assert capsys.readouterr().err == (
            f"statemix: {ARCHIVE} has too few stories: validation_size must be at most 9 "
            "(sequences of 200 tokens in the stories of the validation split), got 512\n"
        )
    assert [path.name for path in tmp_path.iterdir()] == [ARCHIVE]
