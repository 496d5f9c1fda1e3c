"""Attempts from new weights, and schedules that wait for the one that passes."""

import dataclasses
import json
import math
from types import SimpleNamespace

import pytest
import torch

from statemix.errors import RequestError, SettingError
from statemix.tasks import TaskSpec
from statemix.training import AttributeSchedule, SearchConfig, load_model, load_outcome, train
from statemix.training.attempts import Attempt, Search, seed_of
from statemix.training.certificates import certify_run
from statemix.training.folder import read_metrics
from statemix.training.settings import Assignments

SHARPEN = AttributeSchedule("gate_temperature", end=0.25)
# Every attempt leaves its plateau as soon as its loss falls at all, and has two tests.
SETTINGS = {"search.attempts": 2, "search.plateau": 1.0, "search.every": 2, "search.tests": 2}
SETTINGS |= {"search.accept": 1.0, "search.accept_last": 1.0, "schedules.attributes": (SHARPEN,)}


PROOF = {"search.confirm": "proof"}


@pytest.fixture
def searching(fresh):
    """A run that searches, then trains for six steps; all of its tests fail unless changed."""
    return lambda changes=None, **more: fresh(SETTINGS | (changes or {}), **more)


def led(config, losses, accuracies):
    """Lead a search through the losses of its steps; return it and the steps of its tests."""
    search, tested, scores = Search(config), [], iter(accuracies)
    for step, loss in enumerate(losses, 1):
        search.saw(step, loss)
        if search.due(step):
            tested.append(step)
            search.judge(step, next(scores))
            if search.origin is None and search.attempts[-1].ended is not None:
                search.restart(step)
    return search, tested


def test_an_attempt_leaves_its_plateau_when_the_average_of_its_loss_does():
    # After n losses of 0, the average is .97 ** n of the first loss; .97 ** 10 = .737.
    search, tested = led(SearchConfig(attempts=1, every=5), [2.0, *[0.0] * 20], [0.3, 0.95])
    assert search.attempts == [Attempt(0, left=11, ended=21, accuracy=0.95, passed=True)]
    assert (tested, search.origin) == ([16, 21], 21)


def test_attempts_fail_their_last_test_or_on_the_plateau():
    config = SearchConfig(attempts=3, max_steps=40, every=5, tests=2, accept=0.9, accept_last=0.5)
    fails, stays = [2.0, *[0.0] * 20], [2.0] * 40
    search, tested = led(config, [*fails, *stays, *fails, 1.0], [0.3, 0.49, 0.1, 0.6, 0.5])
    assert search.attempts == [
        Attempt(0, left=11, ended=21, accuracy=0.49),
        Attempt(21, left=None, ended=61, accuracy=0.1),
        Attempt(61, left=72, ended=82, accuracy=0.5, passed=True),
    ]
    assert tested == [16, 21, 61, 77, 82]
    assert (search.began, search.origin) == (61, 82)
    # A message names what each of these tests asks for.
    assert (search.needed(77), search.needed(82)) == (0.9, 0.5)


def test_an_attempt_that_has_lost_track_after_the_schedules_has_failed():
    config = SearchConfig(attempts=2, max_steps=3, confirm=0.9)
    search, _ = led(config, [1.0] * 3, [0.6])
    assert search.unconfirmed
    search.confirm(13, 0.89, passed=False)
    assert search.attempts == [Attempt(0, None, 13, 0.6, passed=False, confirmed=0.89)]
    assert (search.origin, search.unconfirmed) == (None, False)
    search.restart(13)
    for step in range(14, 17):
        search.saw(step, 1.0)
    search.judge(16, 0.6)
    assert search.origin == 16
    # No attempts are left, so the schedules of the last one stay where they are.
    kept = Search(config)
    kept.restore(json.loads(json.dumps(search.to_plain())))
    for one, accuracy, passed in ((search, 0.89, False), (kept, 0.9, True)):
        one.confirm(26, accuracy, passed=passed)
        assert one.attempts[-1] == Attempt(13, None, 16, 0.6, passed=passed, confirmed=accuracy)
        assert (one.origin, one.unconfirmed) == (16, False)


def test_an_attempt_that_diverges_has_failed_if_the_search_may_go_on():
    # In the schedules, too, if the attempt would be tested after them.
    for confirm, gives_up in ((None, False), (0.9, True)):
        search, _ = led(SearchConfig(attempts=2, max_steps=3, confirm=confirm), [1.0] * 3, [0.6])
        assert search.gives_up(5) is gives_up
        assert search.attempts[-1].passed is not gives_up
        assert search.attempts[-1].ended == (5 if gives_up else 3)


def test_attempts_are_in_the_outcome_the_metrics_and_the_events(searching, tmp_path):
    events = []
    outcome = train(searching({"evaluation.every": 3}), tmp_path, on_event=events.append)
    first, second = outcome.attempts
    assert (first.began, first.ended, first.passed) == (0, first.left + 4, False)
    assert (second.began, second.ended, second.passed) == (first.ended, second.left + 4, False)
    assert load_outcome(tmp_path) == outcome
    assert outcome.last.step == second.ended + 6
    rows = read_metrics(tmp_path)
    assert {row["attempt"] for row in rows if row["step"] <= first.ended} == {1}
    assert {row["attempt"] for row in rows if row["step"] > first.ended} == {2}
    # What a failed attempt has reached is not the run's best.
    assert min(outcome.best_test.step, outcome.test_at_best_validation.step) > first.ended
    said = [event.text for event in events if event.kind == "message"]
    test = f"attempt 1 of 2, accuracy {first.accuracy:.4f} on validation sequences (1 needed)"
    assert said[1] == f"step {first.ended}: {test}: failed, the next attempt begins"
    left = "no attempts are left, so the schedules begin with these weights"
    assert said[-1].endswith(f": failed; {left}")
    assert said[-1].startswith(f"step {second.ended}: attempt 2 of 2")


def test_restarts_have_new_weights_and_moments_and_further_batches(searching, begun, monkeypatch):
    run = begun(searching({"schedules.warmup_steps": 3}))
    seen = []
    make_step = run.loop.train_step

    def spy(step):
        loop = run.loop
        moments = [state["step"].item() for state in loop.optimizer.state.values()]
        temperature = run.schedules.attributes(step)["backbone.blocks.0.mixer.gate_temperature"]
        rate, weights = run.schedules.learning_rate(step), run.model.backbone.embedding.weight
        seen.append((weights.clone(), set(moments), rate, temperature, loop.num_steps))
        return make_step(step)

    monkeypatch.setattr(run.loop, "train_step", spy)
    drawn = []
    parts = run.loop.batches.parts
    monkeypatch.setattr(run.loop.batches, "parts", lambda n: drawn.append(n) or parts(n))
    run.loop.run()
    first, second = run.attempts.search.attempts
    origin = second.ended
    assert drawn == list(range(origin + 6))
    weights, moments, rates, temperatures, num_steps = zip(*seen, strict=True)
    for attempt, began in enumerate((first.began, second.began)):
        fresh_model = run.config.build_model(run.task, seed_of(run.config.seed, attempt))
        assert torch.equal(weights[began], fresh_model.backbone.embedding.weight)
        assert moments[began] == set()
        assert moments[began + 1] == {1}
        assert rates[began : began + 4] == pytest.approx([1e-3 / 3, 2e-3 / 3, 1e-3, 1e-3])
    # A whole cosine and a whole change of the temperature after the search.
    assert set(rates[second.began + 3 : origin]) == {1e-3}
    assert rates[origin] == 1e-3
    assert rates[origin + 3] == pytest.approx((1e-3 + 1e-5) / 2)
    assert set(temperatures[: origin + 1]) == {1.0}
    assert temperatures[origin + 1 :] == pytest.approx([1 - 0.125 * n for n in range(1, 6)])
    assert set(num_steps[: first.ended]) == {2 * (1750 + 4) + 6}
    assert set(num_steps[first.ended : origin]) == {first.ended + 1750 + 4 + 6}
    assert set(num_steps[origin:]) == {origin + 6}
    assert run.schedules.attributes(origin + 6)["backbone.blocks.0.mixer.gate_temperature"] == 0.25


def test_bad_settings_are_named_before_anything_is_written(fresh, searching, tmp_path):
    with pytest.raises(SettingError, match=r"^length must be absent without attempts, got 7"):
        fresh({"search.length": 7})
    for changes, message in (
        ({"search.attributes": Assignments(speed=1.0)}, r"search.attributes.speed must be schedul"),
        ({"search.length": 2**30}, "search.length: length must be at most"),
        (
            PROOF | {"task": TaskSpec("copying", length=20)},
            r"search\.confirm must be a number unles",
        ),
        (PROOF | {"model.backbone": "autoencoder"}, r"search\.confirm must be a number unless the"),
    ):
        with pytest.raises(RequestError, match=message):
            train(searching(changes), tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("stop_at", [None, 0.0])
def test_attempts_go_on_until_one_is_right_after_the_schedules(searching, tmp_path, begun, stop_at):
    """The first two attempts pass before the schedules; only the second one is right after them."""
    changes = {"search.attempts": 3, "search.accept": 0.0, "search.confirm": 0.5}
    # Of both attempts, the first evaluation comes right after the search.
    changes |= {"evaluation.stop_at": stop_at, "evaluation.every": 5}
    run = begun(searching(changes))
    said, accuracies = [], iter([0.3, 0.49, 0.4, 0.5])
    run.loop._emit = lambda event: said.append(event.text) if event.kind == "message" else None
    score = run.attempts._evaluator

    def planted(model, **options):
        scores = score(model, **options)
        found = next(accuracies)
        return {
            head: dataclasses.replace(one, token_accuracy=found) for head, one in scores.items()
        }

    run.attempts._evaluator = planted
    run.loop.run()
    first, second = run.attempts.search.attempts
    assert (first.began, first.passed, first.accuracy, first.confirmed) == (0, False, 0.3, 0.49)
    assert (second.began, second.passed) == (first.ended, True)
    assert (second.accuracy, second.confirmed) == (0.4, 0.5)
    assert next(accuracies, None) is None
    # Stopped early, either attempt makes one step of its schedules.
    scheduled = 6 if stop_at is None else 1
    assert first.ended == first.left + 2 + scheduled
    assert run.loop.step == second.ended + scheduled
    steps = [row["step"] for row in read_metrics(run.folder)]
    assert steps == sorted(set(steps))
    assert min(row["step"] for row in run.evaluation.rows.values()) > first.ended
    tested = "on validation sequences after the schedules (0.5 needed)"
    failed = f"attempt 1 of 3, accuracy 0.4900 {tested}: failed, the next attempt begins"
    assert f"step {first.ended}: {failed}" in said
    assert said[-1].endswith(f"attempt 2 of 3, accuracy 0.5000 {tested}: passed")


def test_attempts_go_on_until_one_is_proven(searching, tmp_path, monkeypatch):
    """What is proven is the network that the run keeps, with the attributes of evaluation."""
    verdicts, seen = iter(["refuted", "open", "proven"]), []

    def planted(model, task, *, max_pairs):
        assert (task.name, max_pairs) == ("permutation", 5000)
        mixer = model.backbone.blocks[0].mixer
        seen.append((mixer.gate_temperature, model.state_dict()))
        result = SimpleNamespace(verdict=next(verdicts), word=(1, 4), reason="too many pairs")
        return SimpleNamespace(result=result, head="product")

    monkeypatch.setattr("statemix.training.attempts.prove_task", planted)
    changes = {"evaluation.attributes": {"gate_temperature": 0.125}, "search.attempts": 4}
    changes |= PROOF | {"search.accept": 0.0}
    said = []
    outcome = train(searching(changes), tmp_path, on_event=lambda event: said.append(event.text))
    assert [attempt.passed for attempt in outcome.attempts] == [False, False, True]
    text = "on validation sequences after the schedules"
    for why in ("refuted: wrong after 132 312", "open: too many pairs"):
        assert any(f"{text}, {why}: failed, the next attempt begins" in one for one in said)
    assert any(f"{text}, proven: passed" in one for one in said)
    assert [temperature for temperature, _ in seen] == [0.125] * 3
    # The copy has the temperature of evaluation; the run's network has that of its schedule.
    kept, proven = load_model(tmp_path).state_dict(), seen[-1][1]
    names = [name for name in kept if not name.endswith("temperature")]
    assert all(torch.equal(kept[name], proven[name]) for name in names)
    assert load_model(tmp_path).backbone.blocks[0].mixer.gate_temperature == 0.25
    assert next(verdicts, None) is None


@pytest.fixture
def refuted(fresh):
    """A run whose single attempt is refuted, and repaired up to twice."""
    task = TaskSpec("regex", preset="tomita-4", length=6, states=True)
    changes = PROOF | {"search.attempts": 1, "search.accept": 0.0, "search.repairs": 2}
    return fresh(SETTINGS | changes | {"task": task})


def test_an_attempt_is_repaired_with_the_words_that_it_gets_wrong(refuted, tmp_path):
    said = []
    outcome = train(refuted, tmp_path, on_event=lambda event: said.append(event.text))
    (only,) = outcome.attempts
    assert (only.repairs, only.passed) == (2, False)
    # The schedules have begun three times; each has six steps.
    assert outcome.last.step == only.ended + 6
    began = [text for text in said if "refuted: wrong after" in text and "begins, with" in text]
    assert [text.split(": repair ")[1].split()[0] for text in began] == ["1", "2"]
    numbers = [int(text.split("with ")[1].split()[0]) for text in began]
    assert 1 <= numbers[0] <= numbers[1]
    losses = [row["train"].get("loss/counterexamples") for row in read_metrics(tmp_path)]
    assert losses[0] is None
    assert losses[-1] > 0


def test_a_repair_keeps_weights_and_begins_moments_and_schedules_anew(refuted, begun, monkeypatch):
    # A validation accuracy above 0 would end the training.
    changes = refuted.evaluation.replace(stop_at=0.0, every=100)
    run = begun(refuted.replace(evaluation=changes))
    seen, after, make_step = [], [], run.loop.train_step

    def spy(step):
        weight, steps = run.model.backbone.embedding.weight, run.loop.optimizer.state.values()
        moments = {state["step"].item() for state in steps}
        temperature = run.model.backbone.blocks[0].mixer.gate_temperature
        seen.append((weight.clone(), moments, temperature, run.loop.num_steps))
        loss = make_step(step)
        after.append(weight.clone())
        return loss

    monkeypatch.setattr(run.loop, "train_step", spy)
    run.loop.run()
    (only,) = run.attempts.search.attempts
    assert only.repairs == 2
    weights, moments, temperatures, num_steps = zip(*seen, strict=True)
    assert all(map(torch.equal, weights[1:], after[:-1]))
    for origin in (only.ended - 6, only.ended):
        assert (moments[origin], moments[origin + 1]) == (set(), {1})
        assert temperatures[origin - 1] < 1 == temperatures[origin]
    # Before the first schedules: all steps of the search, and three times the schedules.
    assert num_steps[0] == 1750 + 4 + 3 * 6
    assert len(seen) == num_steps[-1] == only.ended + 6


def test_a_new_attempt_does_not_learn_from_the_words_of_the_last_one(refuted, begun, monkeypatch):
    run = begun(refuted.replace(search=refuted.search.replace(attempts=2, repairs=1)))
    words, make_step = [], run.loop.train_step
    monkeypatch.setattr(
        run.loop,
        "train_step",
        lambda n: words.append(len(run.attempts._wrong.words)) or make_step(n),
    )
    run.loop.run()
    first, second = run.attempts.search.attempts
    assert (first.repairs, second.repairs) == (1, 1)
    assert words[first.ended - 1] > 0
    assert set(words[first.ended : second.ended]) == {0}
    assert words[-1] > 0


def test_splitting_a_step_changes_no_loss_of_wrong_words(refuted, begun):
    batches = refuted.batches.replace(accumulate=3)
    means = []
    for config in (refuted, refuted.replace(batches=batches)):
        run = begun(config)
        run.attempts._wrong.words = [(0, 0, 0), (1, 0)]
        run.step()
        means.append(run.loop.averages.read()["loss/counterexamples"])
    assert means[0] > 0
    assert means[1] == pytest.approx(means[0], rel=1e-6)


def test_a_repair_outlives_a_kill(refuted, tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    outcome = train(refuted, whole)

    def interrupt(event):
        if event.kind == "step" and event.step == outcome.last.step - 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(refuted, cut, on_event=interrupt)
    train(refuted, cut)
    for name, weights in load_model(whole).state_dict().items():
        assert torch.equal(weights, load_model(cut).state_dict()[name])


def test_an_attempt_far_from_right_is_not_repaired():
    search = Search(SearchConfig(attempts=2, confirm="proof", repairs=1, accept=0.9))
    assert search.can_repair(0.9)
    assert not search.can_repair(0.89)
    search.repair(10)
    assert not search.can_repair(1.0)


@pytest.mark.parametrize(
    "changes",
    [{"search.confirm": 0.9, "task": TaskSpec("regex", preset="tomita-4")}, PROOF],
)
def test_repairs_need_a_proof_and_the_words_of_an_automaton(searching, tmp_path, changes):
    with pytest.raises(SettingError, match=r"search\.repairs must be None without confirm=proof"):
        train(searching(changes | {"search.repairs": 1}), tmp_path / "new")
    assert not (tmp_path / "new").exists()


def test_a_proof_of_the_last_attempt_may_fail(searching, tmp_path):
    """Networks that are trained for a few steps are refuted."""
    changes = PROOF | {"search.attempts": 1, "search.accept": 0.0}
    outcome = train(searching(changes), tmp_path)
    (only,) = outcome.attempts
    assert (only.passed, certify_run(tmp_path)[0].verdict) == (False, "refuted")


def test_no_accuracy_stops_a_search_early(searching, tmp_path):
    # Evaluations fall on the steps of tests and on others.
    changes = {"evaluation.stop_at": 0.0, "evaluation.every": 1}
    outcome = train(searching(changes), tmp_path)
    assert len(outcome.attempts) == 2
    # It stops after the first step of the schedules.
    assert outcome.last.step == outcome.attempts[-1].ended + 1


@pytest.mark.parametrize("attempts", [1, 2])
def test_an_attempt_follows_one_that_diverges_unless_it_was_the_last(searching, begun, attempts):
    run = begun(searching({"search.attempts": attempts, "search.accept": 0.0}))
    make_step, spoilt = run.loop.train_step, []

    def planted(step):
        if step == 2 and not spoilt:
            spoilt.append(True)
            raise FloatingPointError("loss must be finite, got nan")
        return make_step(step)

    run.loop.train_step = planted
    if attempts == 1:
        with pytest.raises(FloatingPointError, match="loss must be finite"):
            run.loop.run()
    else:
        run.loop.run()
        first, second = run.attempts.search.attempts
        assert (first.began, first.ended, first.passed, first.accuracy) == (0, 2, False, None)
        assert second.began == 2


def test_an_attempt_whose_evaluation_is_no_number_is_followed_by_another_one(searching, begun):
    run = begun(searching({"evaluation.every": 1}))
    score, spoilt = run.evaluation._test, []

    def planted(model, **options):
        scores = score(model, **options)
        if run.loop.step == 3 and not spoilt:
            spoilt.append(True)
            return {head: dataclasses.replace(one, loss=math.nan) for head, one in scores.items()}
        return scores

    run.evaluation._test = planted
    run.loop.run()
    first, second = run.attempts.search.attempts
    assert (first.ended, second.began) == (3, 3)
    assert [row["step"] for row in read_metrics(run.folder)][:4] == [1, 2, 4, 5]


def test_losses_of_a_failed_attempt_are_not_in_the_next_row(searching, begun):
    run = begun(searching({"evaluation.every": 1000}))
    losses = []
    run.loop._emit = lambda event: losses.append(event.loss) if event.loss is not None else None
    run.loop.run()
    (row,) = read_metrics(run.folder)
    kept = losses[run.attempts.search.attempts[0].ended :]
    assert row["train"]["loss"] == pytest.approx(sum(kept) / len(kept))
