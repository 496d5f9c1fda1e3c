"""The studies of language models: their entries, runs, rows, choice of rates, and tables."""

import re
from dataclasses import replace

import pytest

pytest.importorskip("transformers", reason="transformers is not installed")

from transformers import AutoModelForCausalLM

from statemix.errors import RequestError
from statemix.layers import LayerSpec
from statemix.lm import language_training
from statemix.lm.language_scores import bits_per_byte
from statemix.lm.model_costs import count_sizes
from statemix.lm.prepared import compressed_bits_per_byte, read_prepared
from statemix.sweeps.runner import Job, run_all
from statemix_lab.studies.language.language_runs import LanguageRun, StudyCorpus, split
from statemix_lab.studies.language.language_studies import (
    STUDIES,
    at_rate,
    duel_panels,
    is_at_chosen_rate,
)
from statemix_lab.studies.language.language_studies import language_runs as language_runs_table
from statemix_lab.studies.language.language_suites import RATES, duel_entries, figure_entries
from statemix_lab.studies.language.language_verdicts import verdict_lines
from statemix_lab.studies.store import Store, key, row_of
from statemix_lab.studies.study_entries import StudyEntry, Trial, Trials, plan

FIGURE, DUEL = STUDIES
TEXT = "def add(a, b):\n    return a + b\n\n"


@pytest.fixture(scope="module")
def tiny(tmp_path_factory):
    """A run of a second on texts of its own."""
    texts = tmp_path_factory.mktemp("language") / "texts"
    for number in range(24):
        folder = texts / f"package{number}"
        folder.mkdir(parents=True)
        (folder / "code.py").write_text(f"# {number}\n" + (3 + number) * TEXT)
    mixer = {"name": "bd_lru", "num_blocks": 4, "block_size": 2}
    return LanguageRun(
        StudyCorpus((str(texts),), "bytes"),
        {
            "hidden_size": 8,
            "num_hidden_layers": 1,
            "intermediate_size": 16,
            "mixers": {"linear_attention": mixer},
            "layer_types": ["linear_attention"],
            "tie_word_embeddings": True,
        },
        {"length": 16, "batch_size": 4, "steps": 4, "evaluate_every": 2, "learning_rate": RATES[0]},
    )


def finished(run, folder):
    """Train a run, and return its row."""
    (ended,) = run_all([Job("tiny", run, folder)])
    assert ended.status == "done", ended
    return row_of(ended)


@pytest.fixture(scope="module")
def trained(tiny, tmp_path_factory):
    """The row of the run, and its folder."""
    folder = tmp_path_factory.mktemp("runs") / "one"
    return finished(tiny, folder), folder


def test_run_ends_in_a_row_with_its_curve_and_its_scores(tiny, trained, tmp_path):
    row, folder = trained
    store = Store(tmp_path / "rows.jsonl")
    store.append(row)
    found = store.rows()[key(tiny)]["language"]
    first, last = found["curve"]
    assert [(one["step"], one["tokens"]) for one in (first, last)] == [(2, 128), (4, 256)]
    assert 0 < first["cpu_s"] < last["cpu_s"]
    assert (row["num_steps"], row["num_parameters"]) == (4, found["parameters"])
    files = {"train.bin", "train.idx", "held_out.bin", "held_out.idx"}
    assert set(found["corpus"]["sha256"]) == files
    # The scores are those of the stored model on each part of the text.
    tokens, held_out, tokenizer = read_prepared(folder.parent / tiny.corpus.name)
    validation, test = split(held_out)
    model = AutoModelForCausalLM.from_pretrained(folder / "model")
    parts = {"validation": validation, "test": test, "held_out": held_out}
    for name, part in parts.items():
        assert found["scores"][name] == pytest.approx(bits_per_byte(model.eval(), part))
        assert found["corpus"]["bytes"][name] == part.num_bytes
    bits = found["scores"]["validation"]["bits_per_byte"]
    assert last["bits_per_byte"] == pytest.approx(bits, rel=1e-5)
    assert len({one["bits_per_byte"] for one in found["scores"].values()}) == 3
    compressed = compressed_bits_per_byte(tokens, test, tokenizer)
    assert {name: found["corpus"][name] for name in compressed} == compressed
    # The first quarter of the held-out text chooses, the rest scores.
    assert validation.num_bytes + test.num_bytes == held_out.num_bytes
    quarter, document = held_out.num_bytes / 4, validation.info["document_bytes"][-1]
    assert validation.num_bytes - document < quarter <= validation.num_bytes


def test_interrupted_run_resumes_its_training_and_its_preparation(tiny, trained, tmp_path):
    """Scores are equal bit for bit, and the processor time goes on where it stopped."""
    folder = tmp_path / "runs" / "one"

    def interrupt(event):
        if (event.kind, event.step) == ("step", 3):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        tiny.train(folder, interrupt, 0.0)
    # As if another process had been killed between the files of the tokens.
    tokens = folder.parent / tiny.corpus.name
    (tokens / ".unfinished-tokens").mkdir()
    (tokens / "held_out.bin").rename(tokens / ".unfinished-tokens" / "held_out.bin")
    (tokens / "xz.json").unlink()
    resumed, whole = finished(tiny, folder)["language"], trained[0]["language"]
    assert resumed["scores"] == whole["scores"]
    assert [one["tokens"] for one in resumed["curve"]] == [128, 256]
    assert resumed["curve"][0]["cpu_s"] < resumed["curve"][1]["cpu_s"]


def test_row_that_another_process_stored_is_not_repeated(tiny, tmp_path):
    entries = [StudyEntry("tiny", "tiny", Trials.seeded(tiny, [0]))]
    planned = plan(entries, tmp_path / "runs")
    store = Store(tmp_path / "rows.jsonl")
    FIGURE.fill(planned, store)
    written = store.path.read_bytes()
    # As for a process that planned the run before another one trained it.
    FIGURE.fill(planned, store)
    assert store.path.read_bytes() == written


def test_all_of_a_run_reaches_the_training(tiny, tmp_path, monkeypatch):
    calls = []

    def note(config, tokens, held_out, folder, settings, **options):
        calls.append((config, tokens, held_out, settings, options))
        raise RequestError("noted")

    monkeypatch.setattr(language_training, "train_language_model", note)
    run = replace(tiny, seed=7, precision="bf16-mixed", num_threads=2)
    run = replace(run, corpus=replace(run.corpus, most_documents=20))
    folder = tmp_path / "runs" / "one"
    with pytest.raises(RequestError, match="noted"):
        run.train(folder, print, 5.0)
    ((config, tokens, held_out, settings, options),) = calls
    assert (config.hidden_size, settings.seed, settings.steps) == (8, 7, 4)
    # Its evaluations read what chooses, and not what scores.
    assert held_out.num_bytes == split(read_prepared(tokens.path.parent)[1])[0].num_bytes
    wanted = {"precision": "bf16-mixed", "num_threads": 2, "checkpoint_every_s": 5.0}
    assert {name: options[name] for name in wanted} == wanted
    parts = read_prepared(tmp_path / "runs" / run.corpus.name)[:2]
    assert sum(len(part.bounds) - 1 for part in parts) == 20


def test_learning_rate_is_chosen_by_the_first_seed_on_validation_text(tiny):
    tries = [at_rate(tiny, rate) for rate in RATES]
    rows = {
        key(run): language_row(run, bits) for run, bits in zip(tries, (2.0, 1.5, 1.0), strict=True)
    }
    rows[key(tries[2])]["status"] = "diverged"
    chosen = [is_at_chosen_rate(replace(run, seed=2), rows) for run in tries]
    assert chosen == [False, True, False]
    del rows[key(tries[2])]
    assert [is_at_chosen_rate(run, rows) for run in tries] == [None] * 3


def test_duel_trains_further_seeds_at_the_chosen_rate_alone(tiny, tmp_path):
    trials = [
        Trial(f"lr={rate:g}", tuple(replace(at_rate(tiny, rate), seed=seed) for seed in (0, 1)))
        for rate in RATES
    ]
    planned = plan([StudyEntry("duel", "tiny", Trials(lambda: trials))], tmp_path / "runs")
    store = Store(tmp_path / "rows.jsonl")
    assert DUEL.due(planned, store, retry=False) == planned
    DUEL.fill(planned, store)
    rows = store.rows().values()
    assert sorted(row["seed"] for row in rows) == [0, 0, 0, 1]
    bits = {
        row["asked"]["language"]["training"]["learning_rate"]: row["language"]["scores"]
        for row in rows
        if row["seed"] == 0
    }
    (second,) = [row for row in rows if row["seed"] == 1]
    best = min(bits, key=lambda rate: bits[rate]["validation"]["bits_per_byte"])
    assert second["asked"]["language"]["training"]["learning_rate"] == best
    assert DUEL.due(planned, store, retry=False) == []


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_models_that_are_compared_have_equal_parameters(study):
    counts = {}
    for entry in study.entries("paper", "laptop"):
        run = entry.trials.runs[0][1]
        group = (entry.column, entry.labels["at"] if entry.column == "width" else 0)
        sizes = count_sizes(run.config(2048, 0))
        counts.setdefault(group, []).append(sizes["parameters"])
    for group, numbers in counts.items():
        assert len(numbers) > 1
        assert max(numbers) < 1.03 * min(numbers), (group, numbers)


def language_row(run, bits, *, tokens=(100, 200)):
    """A row of a finished run: its curve falls to ``bits``, on both texts."""
    points = [
        {"step": 1, "tokens": at, "cpu_s": at / 10, "time_s": 1.0, "bits_per_byte": bits + 200 - at}
        for at in tokens
    ]
    scores = {"bits_per_byte": bits, "perplexity": 2.0**bits}
    return {
        "key": key(run),
        "seed": run.seed,
        "environment": {},
        "status": "done",
        "time_s": 1.0,
        "language": {
            "parameters": 10,
            "state_bytes": 4,
            "scores": dict.fromkeys(("validation", "test", "held_out"), scores),
            "curve": points,
        },
    }


def rows_of(entries, bits_of):
    """Rows of all seeds of entries; ``bits_of`` maps an entry and a seed to bits, None to none."""
    found = {}
    for entry in entries:
        for _, run, name in entry.trials.runs:
            bits = bits_of(entry, run.seed)
            if bits is not None:
                found[name] = language_row(run, bits)
    return found


BITS = {1: 1.6, 2: 1.4, 4: 1.41, 8: 1.7, 16: 1.8}


def outcomes(bits_of, speeds=None):
    entries = [one for one in figure_entries("paper", "laptop") if one.column == "block size"]
    runs = FIGURE.runs(entries, rows_of(entries, bits_of))
    return [head.partition(": ")[0] for head, _ in verdict_lines(runs, speeds or {})]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({}, "holds"),
        ({1: 1.39}, "does not hold"),
        # The best seed of m = 1 lies below the worst of m = 4.
        ({1: 1.415}, "within seed noise"),
        ({16: None}, "open"),
    ],
)
def test_claim_is_decided_beyond_seed_noise(changed, expected):
    bits = {**BITS, **changed}

    def bits_of(entry, seed):
        value = bits[entry.labels["at"]]
        # Two seeds do not decide, either.
        return None if value is None and seed else (value or 1.8) + 0.005 * seed

    assert outcomes(bits_of)[0] == expected


def test_rows_are_told_apart_by_the_text_that_scores(tiny):
    """The best rate in validation is the worst on the text that scores."""
    texts = {"validation": 1.0, "test": 2.0, "held_out": 3.0}
    rows = {}
    for rate, bits in zip(RATES, (0.1, 0.2, 0.3), strict=True):
        row = language_row(at_rate(tiny, rate), 0.0)
        row["language"]["scores"] = {
            text: {"bits_per_byte": base + (bits if text == "validation" else -bits),
                   "perplexity": 10 * base}
            for text, base in texts.items()
        }  # fmt: skip
        rows[row["key"]] = row
    trials = [Trial(f"lr={rate:g}", (at_rate(tiny, rate),)) for rate in RATES]
    layers = (LayerSpec("bd_lru", num_blocks=4, block_size=2),)
    entry = StudyEntry("duel", "tiny", Trials(lambda: trials), layers=layers)
    runs = language_runs_table([entry], rows)
    assert runs["chosen"].to_list() == [True, False, False]
    assert runs["bits"].to_list() == pytest.approx([1.9, 1.8, 1.7])
    assert runs["held_out_bits"].to_list() == pytest.approx([2.9, 2.8, 2.7])
    assert runs["perplexity"].to_list() == [20.0] * 3


def test_slow_models_are_cut_off_at_equal_time():
    speeds = dict.fromkeys([f"BD-LRU m={m}" for m in BITS], 10.0)
    same = outcomes(lambda entry, _: BITS[entry.labels["at"]], speeds)
    assert same[:2] == ["holds", "holds"]
    # m = 2 and 4 have read half their tokens when the others end, where their curve is at 100 more.
    slow = speeds | {"BD-LRU m=2": 5.0, "BD-LRU m=4": 5.0}
    assert outcomes(lambda entry, _: BITS[entry.labels["at"]], slow)[:2] == [
        "holds", "does not hold",
    ]  # fmt: skip
    del slow["BD-LRU m=8"]
    assert outcomes(lambda entry, _: BITS[entry.labels["at"]], slow)[1] == "open"


def test_tables_show_means_spreads_and_missing_cells():
    entries = figure_entries("paper", "laptop")
    rows = rows_of(
        entries, lambda entry, seed: 1.5 + 0.1 * seed if entry.labels["at"] == 16 else None
    )
    table = FIGURE.table(FIGURE.runs(entries, rows), entries)
    lines = {line.cells[:3]: line.cells[3:] for line in table.lines}
    assert lines["block size", "BD-LRU m=16", "16"][:2] == ("3", "1.600 ± 0.100")
    assert lines["block size", "BD-LRU m=8", "8"] == ("0", *["–"] * 6)
    assert FIGURE.draw(FIGURE.runs(entries, rows), None) is not None
    assert FIGURE.draw(FIGURE.runs(entries, {}), None) is None


def test_duel_counts_the_chosen_rate_alone():
    entries = duel_entries("paper", "laptop")
    (entry,) = [one for one in entries if one.model == "LSTM"]
    rows = {
        name: language_row(run, {"lr=0.001": 1.7, "lr=0.003": 1.5, "lr=0.01": 1.6}[setting])
        for setting, run, name in entry.trials.runs
        if run.seed == 0 or setting == "lr=0.003"
    }
    runs = DUEL.runs(entries, rows)
    lines = {line.cells[0]: line.cells[1:] for line in DUEL.table(runs, entries).lines}
    assert lines["LSTM"][:3] == ("0.003", "3", "1.500 ± 0.000")
    assert lines["Transformer"] == ("–", "0", *["–"] * 6)
    tokens, time = DUEL.panels(runs)
    assert tokens.curves["run"].n_unique() == 3
    # Ten tokens take a second of the processor.
    assert time.curves["x"].max() == pytest.approx(200 / 10 / 60)
    (_, timed) = duel_panels(runs, {"LSTM": 100.0})
    assert timed.curves["x"].max() == pytest.approx(200 / 100 / 60)


@pytest.mark.parametrize("best", RATES)
def test_duel_ranks_only_models_whose_rate_lies_within_the_grid(best):
    entries = duel_entries("paper", "laptop")
    (entry,) = [one for one in entries if one.model == "LSTM"]
    rows = {
        name: language_row(run, 1.5 if setting == f"lr={best:g}" else 1.6)
        for setting, run, name in entry.trials.runs
    }
    runs = DUEL.runs(entries, rows)
    within = min(RATES) < best < max(RATES)
    ranked = {line.cells[0] for line in DUEL.table(runs, entries).lines}
    assert ("LSTM" in ranked) == within
    assert bool(DUEL.panels(runs)) == within
    assert "Transformer" in ranked  # a model without runs is still to come


@pytest.mark.parametrize("study", STUDIES, ids=lambda study: study.name)
def test_page_has_a_section_of_what_has_results(study, tmp_path):
    entries = study.entries("paper", "laptop")
    edges = ("lr=0.001", "lr=0.01")  # the duel shows a model whose rate lies within its grid
    rows = {
        name: language_row(run, 1.6 if setting in edges else 1.5)
        for setting, run, name in entries[0].trials.runs
    }
    (section,) = study.sections(rows, tmp_path)
    assert section.id.startswith(study.name)
    assert "<svg" in section.picture
    assert "1.5000 bits per byte" in {run[4] for run in section.runs}
    assert list(study.sections({}, tmp_path)) == []


def test_each_corpus_has_a_folder_of_its_own():
    sources = [("a/b",), ("a-b",), ("a:b",), ("A/b",), ("a", "b"), ("a", "b-bytes"), ("x" * 999,)]
    corpora = [StudyCorpus(one, tokenizer) for one in sources for tokenizer in ("bytes", "bpe:300")]
    corpora += [StudyCorpus(("a", "b"), most_documents=9), StudyCorpus(("a", "b", "9"))]
    names = [one.name for one in corpora]
    assert len(set(names)) == len(names)
    assert all(re.fullmatch(r"tokens-[a-z0-9-]{1,80}", name) for name in names)
