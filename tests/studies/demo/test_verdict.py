"""The sentences follow the results."""

from statemix.studies.demo import demo_verdict as verdict


def sentence(summary):
    """The first network's sentence."""
    return verdict.sentences(summary)[0]


def runs_of_first(summary):
    return [run for run in summary["runs"] if run["network"] == "BD-LRU m=3"]


def test_flawless_runs_are_said_to_make_no_error(summary):
    assert sentence(summary) == (
        "BD-LRU m=3 makes no error in any test word of length 16 to 16,384 (2 of 2 seeds)."
    )


def test_one_wrong_position_ends_the_claim_of_no_error(summary, set_accuracy):
    set_accuracy(runs_of_first(summary)[1], {16384: 0.9999})
    assert sentence(summary) == (
        "BD-LRU m=3 reaches 0.99 at length 16 in 2 of 2 seeds, and at length 16,384 in 2 of 2."
    )


def test_an_error_at_a_length_between_ends_the_claim_too(summary, set_accuracy):
    set_accuracy(runs_of_first(summary)[1], {256: 0.9999})
    assert "no error" not in sentence(summary)


def test_a_seed_that_does_not_get_there_is_counted_and_named(summary, set_accuracy):
    set_accuracy(runs_of_first(summary)[1], {16: 0.7, 16384: 0.2})
    assert sentence(summary) == (
        "BD-LRU m=3 reaches 0.99 at length 16 in 1 of 2 seeds, and at length 16,384 in "
        "1 of 2 (seed 1: .700 and .200)."
    )


def test_a_network_that_fails_only_on_long_words_is_distinguished(summary, set_accuracy):
    for run in runs_of_first(summary):
        set_accuracy(run, {16384: 0.3})
    assert "at length 16 in 2 of 2 seeds, and at length 16,384 in 0 of 2" in sentence(summary)


def test_a_network_that_never_gets_there_shows_its_best(summary):
    assert verdict.sentences(summary)[1] == (
        "BD-LRU m=2 reaches 0.99 at length 16 in 0 of 2 seeds: the best accuracy is .550 at that "
        "length (guessing gives .167) and .177 at length 16,384."
    )


def test_a_seed_without_a_result_ends_the_claim_of_no_error(summary, lose):
    lose(runs_of_first(summary)[1], "diverged", "loss is nan")
    assert sentence(summary) == (
        "BD-LRU m=3 reaches 0.99 at length 16 in 1 of 2 seeds, and at length 16,384 in 1 of 2 "
        "(seed 1 diverged)."
    )


def test_a_seed_without_a_result_is_named_where_none_gets_there(summary, lose):
    lose(summary["runs"][1], "failed", "disk full")
    assert verdict.sentences(summary)[1] == (
        "BD-LRU m=2 reaches 0.99 at length 16 in 0 of 2 seeds: the best accuracy is .550 at that "
        "length (guessing gives .167) and .177 at length 16,384 (seed 0 failed)."
    )


def test_a_network_without_any_result_says_so(summary, lose):
    first, second = runs_of_first(summary)
    lose(first, "diverged", "loss is nan")
    lose(second, "interrupted", "")
    assert sentence(summary) == (
        "BD-LRU m=3 has no result in any of 2 runs: seed 0 diverged; seed 1 was interrupted."
    )


def test_proofs_are_counted(summary, lose):
    first = runs_of_first(summary)
    first[0]["certificate"] = {"verdict": "proven"}
    assert sentence(summary).endswith(
        "With gates of 0 and 1, the blocks that track are proven right after every word of every "
        "length (1 of 2 seeds)."
    )
    lose(first[0], "failed", "disk full")
    assert "proven" not in sentence(summary)
