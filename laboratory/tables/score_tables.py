"""The tables of perfect scores: how many networks have one, and the words that refute them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from measurement_tables import markdown, pivot, study_rows

from statemix_lab.studies.exactness.exact_suites import RECIPE
from statemix_lab.studies.exactness.perfect_scores import LONGEST, outcome
from statemix_lab.studies.result_text import accuracy_text
from statemix_lab.studies.study import find_study

# Letters of a word that is written in full, and at each end of others.
_WHOLE, _ENDS = 40, 15


def tables() -> dict[str, str]:
    """Return the Markdown of every table by the name of its file."""
    runs = list(_runs())
    return {
        "perfect_scores": _totals(runs),
        "perfect_languages": _languages(runs),
        "perfect_words": _words(runs),
    }


# Language, network, and row of a run; None if it has not ended.
_Run = tuple[str, str, Mapping[str, Any] | None]


def _runs() -> Iterator[_Run]:
    rows = study_rows()
    for entry in find_study("perfect-scores").entries("paper", "laptop"):
        for _, _, key in entry.trials.runs:
            yield entry.column, entry.model, rows.get(key)


def _totals(runs: Sequence[_Run]) -> str:
    """Write a line for each network, and one for all networks of other layers."""
    networks = list(dict.fromkeys(model for _, model, _ in runs))
    groups = {model: {model} for model in networks}
    groups["all networks of other layers"] = set(networks) - {RECIPE}
    lines = []
    for name, models in groups.items():
        planned = [row for _, model, row in runs if model in models]
        ended = [row for row in planned if row is not None]
        outcomes = [outcome(row) for row in ended]
        refuted, left = outcomes.count("refuted"), outcomes.count("not refuted")
        proofs = [row["certificate"]["verdict"] for row in ended if "certificate" in row]
        proven = f"{proofs.count('proven')} of {len(proofs)}" if proofs else "–"
        trained = f"{len(ended)} of {len(planned)}"
        lines.append((_name(name), trained, str(refuted + left), str(refuted), proven))
    head = ("network", "trained", "perfect in the test", "of these, refuted", "proven")
    return markdown(head, lines)


def _languages(runs: Sequence[_Run]) -> str:
    """Write what has become of the networks of each language, seed by seed."""
    cells: dict[tuple[str, str], list[str]] = {}
    for language, model, row in runs:
        texts = cells.setdefault((language, model), [])
        if row is not None:
            text = outcome(row)
            if text == "not perfect":
                (head,) = row["test"][str(LONGEST)].values()
                text = accuracy_text(head["token_accuracy"])
            texts.append(text)
    found = (
        ((language,), _name(model), ", ".join(texts) or "to do")
        for (language, model), texts in cells.items()
    )
    return pivot(["language"], found)


def _words(runs: Sequence[_Run]) -> str:
    """Write the word that refutes each refuted network."""
    lines = []
    for language, model, row in runs:
        if row is None or outcome(row) != "refuted":
            continue
        found = row["refutation"]
        lines.append(
            (
                language,
                _name(model),
                str(row["seed"]),
                f"`{_word(found['word'])}`",
                f"{found['length']:,}",
                f"{found['answer']}, not {found['expected']}",
                found["found_by"],
            )
        )
    return markdown(
        ("language", "network", "seed", "word", "letters", "answer", "found among"), lines
    )


def _name(model: str) -> str:
    return "recipe `exact`" if model == RECIPE else model


def _word(parts: Mapping[str, Any]) -> str:
    """Write a word as u (v)^n w."""
    before, loop, after = (_spelled("".join(parts[one])) for one in ("before", "loop", "after"))
    if parts["times"] < 2:
        return before + loop + after
    return f"{before} ({loop})^{parts['times']:,} {after}".strip()


def _spelled(letters: str) -> str:
    return letters if len(letters) <= _WHOLE else f"{letters[:_ENDS]}...{letters[-_ENDS:]}"
