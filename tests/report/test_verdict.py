"""The sentences follow the results."""

from statemix.report import verdict


def sentence(summary):
    """The first network's sentence."""
    return verdict.sentences(summary)[0]


def runs_of_first(summary):
    return [run for run in summary["runs"] if run["m"] == 3]


def test_flawless_runs_are_said_to_make_no_error(summary):
    assert sentence(summary) == (
        "BD-LRU m=3 makes no error in any test word, neither at length 16 nor at 16,384, "
        "in all 2 seeds."
    )


def test_one_wrong_position_ends_the_claim_of_no_error(summary):
    runs_of_first(summary)[1]["accuracy"]["16384"] = 0.9999
    assert sentence(summary) == (
        "BD-LRU m=3 reaches 0.99 at length 16 in all 2 seeds, and at length 16,384 in all 2 seeds."
    )


def test_an_error_at_a_length_between_ends_the_claim_too(summary):
    runs_of_first(summary)[1]["accuracy"]["256"] = 0.9999
    assert "no error" not in sentence(summary)


def test_a_missing_seed_is_counted_and_named(summary):
    runs_of_first(summary)[1]["accuracy"] |= {"16": 0.7, "16384": 0.2}
    assert sentence(summary) == (
        "BD-LRU m=3 reaches 0.99 at length 16 in 1 of 2 seeds, and at length 16,384 in "
        "1 of 2 seeds (seed 1: .700 and .200)."
    )


def test_a_network_that_fails_on_long_words_only_is_told_apart(summary):
    for run in runs_of_first(summary):
        run["accuracy"]["16384"] = 0.3
    assert "at length 16 in all 2 seeds, and at length 16,384 in 0 of 2 seeds" in sentence(summary)


def test_a_network_that_never_gets_there_shows_its_best(summary):
    assert verdict.sentences(summary)[1] == (
        "BD-LRU m=2 does not reach 0.99 at length 16 in any of 2 seeds: its best is .550 "
        "(guessing gives .167), and .177 at length 16,384."
    )
