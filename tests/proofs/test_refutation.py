"""The search for wrong words, in networks with planted faults and in exact ones."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import one_hot

from statemix.automaton import IGNORED, NEVER, Automaton
from statemix.errors import RequestError
from statemix.proofs import (
    StateMachine,
    check_certificate,
    check_word,
    harden,
    refute,
    word_trials,
)
from statemix.proofs.candidate_words import CandidateWords, compress, count_removals, removals
from statemix.tasks import build
from statemix.tasks.automata.known_languages import LANGUAGES


def moore(table):
    """The automaton that answers with its state."""
    return Automaton(0, np.array(table), np.array(table))


# a counts modulo 3, and b begins again.
COUNTING = moore([[1, 0], [2, 0], [0, 0]])
# hold, low, high.
FLIP_FLOP = moore([[0, 0, 1], [1, 0, 1]])
# Only b a a ... a leads far; the other letter leads back to the start.
LOCK = moore([[0, 1], *([state + 1, 0] for state in range(1, 39)), [39, 0]])


def whole(automaton):
    """A network that answers whole words at once."""
    tables = automaton.transitions, np.maximum(automaton.outputs, -1)
    machine = StateMachine(*(table.astype(np.int32) for table in tables))
    return lambda tokens: torch.from_numpy(machine.run(tokens.numpy(), automaton.start)[0])


class Stepped:
    """A network that reads one letter of each word, and returns logits."""

    def __init__(self, automaton):
        self.start, self.tables = automaton.start, torch.from_numpy(automaton.transitions)
        self.outputs = torch.from_numpy(automaton.outputs.clip(0))

    def step(self, tokens, state):
        state = torch.full_like(tokens, self.start) if state is None else state
        logits = one_hot(self.outputs[state, tokens], int(self.outputs.max()) + 1).float()
        return logits, self.tables[state, tokens]


def changed(automaton, seed):
    """An automaton with one transition changed, which random words tell from the other one."""
    rng, count = np.random.default_rng(seed), automaton.num_states
    words = torch.from_numpy(rng.integers(automaton.num_tokens, size=(50, 200)))
    while True:
        table, place = (
            automaton.transitions.copy(),
            tuple(rng.integers(automaton.transitions.shape)),
        )
        table[place] = (table[place] + rng.integers(1, count)) % count
        is_moore = (automaton.outputs == automaton.transitions).all()
        other = Automaton(0, table, table.copy() if is_moore else automaton.outputs)
        if (whole(other)(words) != whole(automaton)(words)).any():
            return other


def letters_since(tokens, *written):
    """How many letters ago one of the letters ``written`` stood last, or the word began."""
    places = torch.arange(1, tokens.shape[1] + 1)
    last = torch.where(torch.isin(tokens, torch.tensor(written)), places, 0).cummax(1).values
    return places - last, last


def saturating(most):
    return lambda tokens: letters_since(tokens, 1)[0].clamp(max=most) % 3


def right_up_to(length, automaton, answer):
    """A network whose answers after ``length`` letters are all one."""

    def network(tokens):
        answers = whole(automaton)(tokens)
        answers[:, length:] = answer
        return answers

    return network


def decaying(rate):
    """A flip-flop whose state decays; class 0 has a small head start."""

    def network(tokens):
        since, last = letters_since(tokens, 1, 2)
        written = torch.cat([torch.ones_like(tokens[:, :1]), tokens], 1).gather(1, last)
        state = (2.0 * written - 3) * rate**since
        return torch.stack([0.01 - state, state], 2)

    return network


def drawn(states, letters, seed):
    task = build("random_automaton", num_states=states, num_letters=letters, table_seed=seed)
    return task.automaton()


DRAWN = [drawn(states, 2 + states % 3, states) for states in (2, 3, 5, 8, 12, 16, 24, 32, 40, 48)]
REGEXES = [build("regex", **options).automaton() for options in list(LANGUAGES.values())[:5]]
STUCK = np.array(LOCK.transitions)
STUCK[37, 0] = 37
FAULTS = {
    "lock": (LOCK, whole(moore(STUCK)), 100_000),
    **{f"table-{n}": (a, whole(changed(a, n)), 20_000) for n, a in enumerate(DRAWN)},
    **{f"step-{n}": (a, Stepped(changed(a, 100 + n)), 20_000) for n, a in enumerate(DRAWN[5:])},
    **{f"regex-{n}": (a, whole(changed(a, n)), 20_000) for n, a in enumerate(REGEXES)},
    **{f"2^{k}": (COUNTING, saturating(2**k), 300 * 2**k + 50_000) for k in range(4, 13)},
    **{
        f"{L}-{n}": (a, right_up_to(L, a, n), 30 * L + 50_000)
        for L in (300, 3_000, 30_000)
        for n, a in enumerate((COUNTING, DRAWN[2]))
    },
    **{f"decay-{rate}": (FLIP_FLOP, decaying(rate), 500_000) for rate in (0.9, 0.98, 0.99, 0.999)},
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_planted_fault_is_found_and_its_file_is_confirmed(name, tmp_path, capsys):
    automaton, network, budget = FAULTS[name]
    found = refute(network, automaton, budget=budget)
    assert found.verdict == "refuted"
    assert found.letters <= budget
    # The network is right along the word, and wrong at its end.
    right = automaton.answers(found.word)
    tokens = torch.tensor([found.word])
    if hasattr(network, "step"):
        answers, state = [], None
        for token in tokens[0]:
            logits, state = network.step(token[None], state)
            answers.append(int(logits.argmax()))
    else:
        output = network(tokens)
        answers = (output if output.ndim == 2 else output.argmax(2))[0].tolist()
    assert answers[:-1] == right[:-1]
    assert (answers[-1], right[-1]) == (found.answer, found.expected)
    assert answers[-1] != right[-1]
    path = tmp_path / "refutation.json"
    path.write_text(json.dumps({"tables": found.tables(automaton)}))
    assert check_certificate.main(str(path)) == 1
    assert f"is right after {len(found.word):,} letters" in capsys.readouterr().out
    again = check_word(network, automaton, found.word)
    assert (again.verdict, again.word, again.answer) == ("refuted", found.word, found.answer)


def test_there_are_forty_faults():
    assert len(FAULTS) == 40


def test_no_word_of_an_exact_tracker_is_wrong(of_group, passing):
    groups = {name: build("permutation", group=name).automaton() for name in ("S_2", "S_3", "S_4")}
    exact = [(harden(of_group(name)), automaton) for name, automaton in groups.items()]
    exact += [passing, (whole(LOCK), LOCK), (Stepped(FLIP_FLOP), FLIP_FLOP)]
    exact += [(whole(automaton), automaton) for automaton in (*DRAWN[6:8], *REGEXES[2:4])]
    assert len(exact) == 10
    for network, automaton in exact:
        found = refute(network, automaton, budget=30_000, longest=2_048)
        assert (found.verdict, found.word, found.answer) == ("not refuted", (), None)
        assert found.letters > 20_000
        assert all(part.right == part.scored for part in found.accuracy)


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("table-2", {"short words"}),
        ("lock", {"covering words"}),
        ("2^10", {"loops", "alternating loops"}),
        ("decay-0.999", {"loops", "alternating loops", "guided words"}),
    ],
)
def test_cheap_words_come_first(name, kinds):
    automaton, network, budget = FAULTS[name]
    assert refute(network, automaton, budget=budget).found_by in kinds


def test_margins_guide_the_search():
    """Of 60 loops that look alike, only that of letter 47 wears the network out."""
    automaton = moore([[0] * 60])

    def network(tokens):
        worn = 1 - (tokens == 47).cumsum(1) / 2_000
        return torch.stack([worn, torch.zeros_like(worn)], 2)

    found = refute(network, automaton, budget=100_000)
    assert (found.verdict, found.found_by) == ("refuted", "guided words")
    assert found.word.count(47) == 2_000
    answers = refute(lambda tokens: network(tokens).argmax(2), automaton, budget=100_000)
    assert answers.verdict == "not refuted"


def test_a_word_is_shortened_until_no_piece_can_be_removed():
    """The network forgets a 1 when it has read 7 letters 0 since, one 2, or more, and then a 3."""
    automaton = moore([[0, 1, 0, 0], [1, 1, 1, 1]])

    def network(tokens):
        answers = (tokens == 1).cummax(1).values.long()
        since, _ = letters_since(tokens, 1)
        twos = (tokens == 2).cumsum(1)
        return torch.where((since > 8) & (twos > 0) & (tokens == 3), 0, answers)

    found = refute(network, automaton, budget=100_000)
    assert found.minimal
    assert len(found.word) == 10
    assert found.found_length >= 10
    for size in range(1, 10):
        for shorter in removals(np.array(found.word), size):
            assert check_word(network, automaton, shorter.tolist()).verdict == "not refuted"


@pytest.mark.parametrize("seed", range(5))
def test_pieces_and_powers_of_a_word(seed):
    rng = np.random.default_rng(seed)
    word = np.concatenate([rng.integers(2, size=5), np.tile(rng.integers(2, size=3), 9), [1, 0]])
    for size in (1, 3, 7, len(word) - 1):
        starts = range(len(word) - size + 1)
        expected = {(*word[:start], *word[start + size :]) for start in starts}
        assert sorted(map(tuple, removals(word, size))) == sorted(expected)
        assert count_removals(word, size) == len(expected)
    parts = compress(word)
    assert [*parts.before, *parts.loop * parts.times, *parts.after] == word.tolist()
    assert parts.times >= 9
    assert compress(np.array([0, 1, 2])) == ((0, 1, 2), (), 0, ())


def test_only_scored_answers_count_and_words_end_with_one():
    """After "=" a word has ended; the network is right about 1 operator, and wrong about 3."""
    automaton = build("modular_arithmetic").automaton()
    wrong = Automaton(0, automaton.transitions, automaton.outputs.copy())
    deep = CandidateWords(automaton, 0).states(automaton.start, [0, 6, 0, 6, 0])[-1]
    wrong.outputs[deep] = np.where(wrong.outputs[deep] >= 0, 4 - wrong.outputs[deep], IGNORED)
    found = refute(whole(wrong), automaton, budget=50_000)
    assert found.verdict == "refuted"
    assert automaton.answers(found.word)[-1] == found.expected != found.answer
    assert found.margins is None


def test_letters_that_cannot_follow_stay_out_of_every_word():
    """The margin is smallest in state 2, after which the first letter cannot follow."""
    table = np.array([[1, NEVER], [2, 0], [NEVER, 0]])
    automaton = Automaton(0, table, np.where(table == NEVER, IGNORED, table))

    class Faint(Stepped):
        def step(self, tokens, state):
            logits, after = super().step(tokens, state)
            return logits * torch.where(after == 2, 1.0, 5.0)[:, None], after

    for seed in range(3):
        found = refute(Faint(automaton), automaton, budget=20_000, seed=seed)
        assert found.verdict == "not refuted"


def test_a_finite_language_ends_the_search():
    table = np.array([[1, NEVER], [NEVER, 2], [NEVER, NEVER]])
    automaton = Automaton(0, table, np.where(table == NEVER, IGNORED, table))
    found = refute(whole(automaton), automaton, budget=1_000)
    assert (found.verdict, found.letters) == ("not refuted", 6)


def test_states_that_no_word_reaches_are_left_out():
    automaton = moore([[2, 0], [1, 1], [2, 2]])
    network = whole(automaton)
    found = refute(network, automaton, budget=1_000)
    assert found.notes == ("1 of 3 states were left out, because no word reaches them",)


@pytest.mark.parametrize(
    ("logits", "answer"),
    [([torch.nan, 0.0], None), ([0.0, torch.nan], None), ([1.0, 1.0], 1), ([-torch.inf] * 2, None)],
)
def test_ties_and_what_is_no_number_are_wrong(logits, answer):
    """After three letters."""

    def network(tokens):
        found = torch.tensor([1.0, 0.0]).repeat(*tokens.shape, 1)
        found[:, 3:] = torch.tensor(logits)
        return found

    found = refute(network, moore([[0]]), budget=1_000)
    assert (len(found.word), found.answer, found.expected) == (4, answer, 0)
    assert found.margins[:3] == (1.0, 1.0, 1.0)


def test_a_word_that_fails_only_in_a_batch_does_not_count():
    def network(tokens):
        return torch.zeros_like(tokens) + (len(tokens) > 1)

    found = refute(network, moore([[0, 0]]), budget=1_000)
    assert found.verdict == "not refuted"
    assert found.notes[0].endswith("words failed in a batch and not alone; they do not count")


def test_time_ends_a_search():
    assert refute(whole(LOCK), LOCK, seconds=1e-9).letters < 100


def test_a_search_with_little_time_tries_long_words(monkeypatch):
    """Short words take a tenth of the time, however many letters the budget allows."""
    exact, read = whole(COUNTING), 0

    def network(tokens):
        nonlocal read
        read += tokens.numel()
        return exact(tokens)

    # A million letters a second.
    monkeypatch.setattr(word_trials, "time", SimpleNamespace(monotonic=lambda: read / 1e6))
    found = refute(network, COUNTING, budget=10**12, seconds=1.0, longest=10_000)
    assert found.verdict == "not refuted"
    assert found.letters == pytest.approx(1e6, rel=0.3)
    assert found.accuracy[-1].last > 10_000


@pytest.mark.parametrize("budget", [1, 2, 100, 5_000])
def test_letters_stay_within_the_budget(budget):
    found = refute(whole(FLIP_FLOP), FLIP_FLOP, budget=budget)
    assert budget / 2 <= found.letters <= budget
    assert sum(part.scored for part in found.accuracy) == found.letters


class Recurrent(nn.Module):
    """nn.LSTM between an embedding and a readout."""

    def __init__(self):
        super().__init__()
        self.embedding, self.lstm = nn.Embedding(2, 4), nn.LSTM(4, 8, batch_first=True)
        self.readout = nn.Linear(8, 2)

    def extend(self, tokens, state=None):
        hidden, state = self.lstm(self.embedding(tokens), state)
        return self.readout(hidden), state

    def forward(self, tokens):
        return self.extend(tokens)[0]


def test_an_lstm_is_driven_with_its_state():
    torch.manual_seed(0)
    model, parity = Recurrent(), moore([[0, 1], [1, 0]])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.03)
    for _ in range(100):
        bits = torch.randint(2, (64, 6))
        loss = nn.functional.cross_entropy(model(bits).transpose(1, 2), bits.cumsum(1) % 2)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    found = refute(model, parity, budget=60_000)
    assert found.verdict == "refuted"
    word = torch.tensor([found.word])
    logits = model(word)[0].detach()
    assert logits.argmax(1)[:-1].tolist() == parity.answers(found.word)[:-1]
    assert logits.argmax(1)[-1] != found.expected
    margins = (logits * (2 * one_hot(word[0].cumsum(0) % 2, 2) - 1)).sum(1)
    torch.testing.assert_close(torch.tensor(found.margins), margins, atol=1e-4, rtol=0)


def test_numbers_of_letters_and_answers_may_be_others():
    """Letters are the tokens 5 and 3, and answers the classes 7 and 2."""
    wrong = changed(COUNTING, 0)

    def network(tokens):
        letters = (tokens == 3).long()
        return torch.tensor([7, 2, 4])[whole(wrong)(letters)]

    def logits(tokens):
        return one_hot(network(tokens), 9).float()

    plain = refute(whole(wrong), COUNTING)
    for model in (network, logits):
        found = refute(model, COUNTING, tokens=[5, 3], classes=[7, 2, 4])
        assert (found.word, found.answer) == (plain.word, plain.answer)


@pytest.mark.parametrize(
    ("model", "options", "message"),
    [
        (whole(COUNTING), {"budget": 0}, "budget must be at least 1, got 0"),
        (whole(COUNTING), {"seconds": 0}, "seconds must be above 0, got 0"),
        (whole(COUNTING), {"longest": 0}, "longest must be at least 1, got 0"),
        (whole(COUNTING), {"tokens": [1]}, "tokens must have 2 numbers, got 1"),
        (3, {}, "model must be a function or a module, got int"),
        (lambda t: torch.zeros(*t.shape, 2), {}, "logits of 3 classes or more, got float32 .*2"),
        (lambda t: torch.zeros(*t.shape), {}, r"logits \(1, 1, .*\) or integer .* got float32"),
        (lambda t: torch.zeros(1, 5, 3), {}, r"must return logits .* got float32 \(1, 5, 3\)"),
    ],
)
def test_bad_requests_are_named_in_one_line(model, options, message):
    with pytest.raises(RequestError, match=message) as raised:
        refute(model, COUNTING, **options)
    assert "\n" not in str(raised.value)


def test_a_head_and_a_scored_answer_must_exist(of_group):
    with pytest.raises(RequestError, match=r"head must be one of \['answer'\], got 'x'"):
        refute(of_group("S_2"), build("permutation", group="S_2").automaton(), head="x")
    with pytest.raises(RequestError, match="automaton must score an answer to some word"):
        refute(whole(COUNTING), Automaton(0, np.zeros((1, 1), int), np.full((1, 1), IGNORED)))


def test_the_checker_refuses_what_the_automaton_does_not_confirm(tmp_path):
    automaton, network, _ = FAULTS["2^4"]
    tables = refute(network, automaton, budget=100_000).tables(automaton)
    for name, change, reason in (
        ("expected", tables["answer"], "the automaton answers"),
        ("answer", tables["expected"], "the answer of the network is right"),
        ("word", tables["word"] | {"times": 10**8}, "the word's times holds"),
        ("word", tables["word"] | {"before": [2]}, "the word's before holds 2"),
        ("automaton", {}, "its tables are not whole"),
    ):
        other = tables | {name: change}
        other["sha256"] = check_certificate.digest(other)
        path = tmp_path / "refutation.json"
        path.write_text(json.dumps({"tables": other}))
        status, said = check_certificate.verdict(str(path))
        assert status == 2
        assert reason in said
