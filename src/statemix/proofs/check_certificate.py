#!/usr/bin/env python3
"""Check a certificate of Statemix: read its integer tables, and follow every word.

    python check_certificate.py certificate.json

This file needs Python 3.10 or newer and nothing else. docs/certificates.md is its specification.
It prints "proven" (exit status 0), "refuted" with a word (1), or what is wrong with the file (2).
"""

import hashlib
import json
import os
import sys
from collections import deque
from typing import Any

# Letters of the longest word that is followed.
MOST_LETTERS = 10_000_000


class Invalid(Exception):
    """The file is no certificate with tables."""


def require(condition: bool, message: str) -> None:
    """Refuse the file unless a condition holds."""
    if not condition:
        raise Invalid(message)


def integers(table: Any, name: str, length: int, least: int, limit: int) -> None:
    """Check that a table is a list of integers in least ... limit - 1."""
    require(isinstance(table, list) and len(table) == length, f"{name} must have {length} numbers")
    for number in table:
        require(type(number) is int and least <= number < limit, f"{name} holds {number!r}")


def digest(tables: dict[str, Any]) -> str:
    """Return the SHA-256 of the tables but "sha256", as JSON with sorted keys and no blanks."""
    content = {key: value for key, value in tables.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(text.encode()).hexdigest()


def check_names(tables: dict[str, Any], number: int, *names: str) -> None:
    """Check the names of the tables, the number of their format, and that no table was changed."""
    require(isinstance(tables, dict), "it has no tables")
    known = {"format", *names, "sha256"}
    require(set(tables) == known, f"its tables must be {sorted(known)}")
    integers([tables["format"]], "its format", 1, number, number + 1)
    require(tables["sha256"] == digest(tables), "its tables were changed after it was written")


def check_form(tables: dict[str, Any], number: int, *names: str) -> None:
    """Check the names of the tables of a proof, and those that both formats have."""
    check_names(tables, number, "values", "start", "letters", *names)
    values = tables["values"]
    require(type(values) is int and values > 0, "values must be a number of values")
    integers(tables["start"], "start", len(tables["start"]), 0, values)
    require(isinstance(tables["letters"], list), "letters must be a list")


def check_search_form(tables: dict[str, Any]) -> None:
    """Check the form of the tables of a proof by search: lengths and the ranges of all numbers."""
    check_form(tables, 1, "states", "answers", "automaton")
    for name in ("states", "answers"):
        require(isinstance(tables[name], list), f"{name} must be a list")
    values, size, automaton = tables["values"], len(tables["start"]), tables["automaton"]
    for rules in tables["letters"]:
        is_whole = isinstance(rules, list) and len(rules) == size
        require(is_whole, "a letter must have a rule per entry")
        for rule in rules:
            if isinstance(rule, list):
                integers(rule, "a rule", values, 0, values)
            else:
                integers([rule], "a rule", 1, -values, size)
    letters, count = len(tables["letters"]), len(tables["states"])
    for state in tables["states"]:
        integers(state, "a state", size, 0, values)
    require(len(set(map(tuple, tables["states"]))) == count, "a state stands there twice")
    require(len(tables["answers"]) == count, "answers must have a row per state")
    for row in tables["answers"]:
        integers(row, "answers", letters, -1, 1 << 62)
    check_automaton(automaton, letters)


def check_automaton(automaton: dict[str, Any], letters: int) -> None:
    """Check the form of the automaton of a task."""
    require(set(automaton) == {"start", "transitions", "outputs"}, "the automaton is not whole")
    task_states = len(automaton["transitions"])
    integers([automaton["start"]], "the automaton's start", 1, 0, task_states)
    require(len(automaton["outputs"]) == task_states, "outputs must have a row per state")
    for moves, outputs in zip(automaton["transitions"], automaton["outputs"], strict=True):
        integers(moves, "transitions", letters, -1, task_states)
        integers(outputs, "outputs", letters, -1, 1 << 62)


def check_form_safely(check_its_form: Any, tables: dict[str, Any]) -> None:
    """Check the form of the tables; what that cannot even read is invalid, too."""
    try:
        check_its_form(tables)
    except (LookupError, TypeError, AttributeError, ValueError, RecursionError) as error:
        raise Invalid(f"its tables are not whole: {error!r}") from error


def step(state: tuple[int, ...], rules: list[Any]) -> tuple[int, ...]:
    """Return the network's state after a letter."""
    after = []
    for value, rule in zip(state, rules, strict=True):
        if isinstance(rule, list):
            after.append(rule[value])
        else:
            after.append(state[rule] if rule >= 0 else -1 - rule)
    return tuple(after)


def check(tables: dict[str, Any]) -> tuple[int, tuple[int, ...] | None]:
    """Return the pairs of states that words reach, and a shortest word that fails or None."""
    check_form_safely(check_search_form, tables)
    numbers = {tuple(state): number for number, state in enumerate(tables["states"])}
    automaton = tables["automaton"]
    first = (tuple(tables["start"]), automaton["start"])
    # Pair -> the pair before it and the letter between; None for the first pair.
    origins: dict[Any, tuple[Any, int] | None] = {first: None}
    waiting, scored = deque([first]), False
    while waiting:
        pair = waiting.popleft()
        state, task_state = pair
        for letter, rules in enumerate(tables["letters"]):
            next_task_state = automaton["transitions"][task_state][letter]
            if next_task_state < 0:
                continue
            after = step(state, rules)
            right = automaton["outputs"][task_state][letter]
            number = numbers.get(after)
            scored = scored or right >= 0
            if right >= 0 and (number is None or tables["answers"][number][letter] != right):
                word = [letter]
                while (origin := origins[pair]) is not None:
                    pair, letter = origin
                    word.append(letter)
                return len(origins), tuple(reversed(word))
            require(number is not None, f"states lacks one that letter {letter} leads to")
            if (after, next_task_state) not in origins:
                origins[after, next_task_state] = pair, letter
                waiting.append((after, next_task_state))
    require(scored, "no answer to any word is scored")
    return len(origins), None


def check_structure_form(tables: dict[str, Any]) -> None:
    """Check the form of the tables of a proof by structure."""
    check_form(tables, 2, "places", "heads", "followers", "codes")
    values, letters, places = tables["values"], tables["letters"], tables["places"]
    size, count = len(tables["start"]), len(places["start"])
    integers(places["start"], "the places' start", count, 0, 1 << 62)
    require(set(places) == {"start", "letters"}, "the places are not whole")
    require(len(letters) == len(places["letters"]) > 0, "places must have a row per letter")
    for rules, sources in zip(letters, places["letters"], strict=True):
        integers(rules, "a letter", size, -values, size)
        integers(sources, "a letter of the places", count, -1 << 62, count)
    integers([tables["heads"]], "heads", 1, 1, count + 1)
    followers, codes = tables["followers"], tables["codes"]
    require(len(followers) == len(codes) == count, "followers and codes must have a row per place")
    for entries, rows in zip(followers, codes, strict=True):
        integers(entries, "followers", len(set(entries)), 0, size)
        for content, *numbers in rows:
            integers([content], "a content", 1, 0, 1 << 62)
            integers(numbers, "a code", len(entries), 0, values)


def check_structure(tables: dict[str, Any]) -> int:
    """Check a proof by structure, and return the number of places that it is about."""
    check_form_safely(check_structure_form, tables)
    followers, start = tables["followers"], tables["start"]
    codes = [set(map(tuple, rows)) for rows in tables["codes"]]
    for place in range(tables["heads"]):
        told = {code[1:] for code in codes[place]}
        require(len(told) == len(codes[place]), f"a code of place {place} has two contents")
    for place, content in enumerate(tables["places"]["start"]):
        first = (content, *(start[entry] for entry in followers[place]))
        require(first in codes[place], f"place {place} does not start in one of its codes")
    for letter, rules in enumerate(tables["letters"]):
        for place, source in enumerate(tables["places"]["letters"][letter]):
            moved = [rules[entry] for entry in followers[place]]
            where = f"letter {letter} at place {place}"
            if source < 0:
                require(all(rule < 0 for rule in moved), f"{where} loads no value")
                after = {(-1 - source, *(-1 - rule for rule in moved))}
            else:
                known = {entry: column for column, entry in enumerate(followers[source], 1)}
                require(all(rule in known for rule in moved), f"{where} copies another entry")
                columns = [0, *(known[rule] for rule in moved)]
                after = {tuple(code[column] for column in columns) for code in codes[source]}
            require(after <= codes[place], f"{where} leads to another code")
    heads: int = tables["heads"]
    return heads


def check_refutation_form(tables: dict[str, Any]) -> None:
    """Check the form of the tables of a refutation."""
    check_names(tables, 3, "automaton", "word", "expected", "answer")
    automaton, word = tables["automaton"], tables["word"]
    letters = len(automaton["transitions"][0])
    check_automaton(automaton, letters)
    require(set(word) == {"before", "loop", "times", "after"}, "the word is not whole")
    for part in ("before", "loop", "after"):
        integers(word[part], f"the word's {part}", len(word[part]), 0, letters)
    integers([word["times"]], "the word's times", 1, 0, MOST_LETTERS)
    size = len(word["before"]) + len(word["loop"]) * word["times"] + len(word["after"])
    require(0 < size <= MOST_LETTERS, f"the word must have 1 to {MOST_LETTERS:,} letters")
    integers([tables["expected"]], "expected", 1, 0, 1 << 62)
    integers([tables["answer"]], "answer", 1, -1, 1 << 62)


def check_refutation(tables: dict[str, Any]) -> list[int]:
    """Check that the automaton gives the expected answer after the word, and return the word."""
    check_form_safely(check_refutation_form, tables)
    automaton, parts = tables["automaton"], tables["word"]
    word: list[int] = parts["before"] + parts["loop"] * parts["times"] + parts["after"]
    place, right = automaton["start"], -1
    for letter in word:
        right, place = automaton["outputs"][place][letter], automaton["transitions"][place][letter]
        require(place >= 0, "the word has a letter that cannot follow")
    require(right == tables["expected"], f"the automaton answers {right} after the word")
    require(tables["answer"] != right, "the answer of the network is right")
    return word


def verdict(path: str) -> tuple[int, str]:
    """Return the exit status for a file, and the line to print."""
    try:
        with open(path, encoding="utf-8") as file:
            found = json.load(file)
        content: dict[str, Any] = found if isinstance(found, dict) else {}
        tables: Any = content.get("tables")
        reason = content.get("without_tables")
        require(isinstance(tables, dict), f"it has no tables{f': {reason}' if reason else ''}")
        if tables.get("format") == 3:
            count, right = len(check_refutation(tables)), tables["expected"]
            said = "no number" if tables["answer"] < 0 else tables["answer"]
            return 1, f"refuted: {right} is right after {count:,} letters, the network said {said}"
        if tables.get("format") == 2:
            count = check_structure(tables)
            said = f"proven: right after every word of every length (by structure, {count} places)"
            return 0, said
        pairs, word = check(tables)
        if word is not None:
            return 1, f"refuted: the answer after {' '.join(map(str, word))} is missing or wrong"
        return 0, f"proven: right after every word of every length ({pairs:,} pairs of states)"
    # A traceback would end with the status of "refuted".
    except Exception as error:  # noqa: BLE001
        return 2, f"invalid: {path}: {error or type(error).__name__}"


def main(path: str) -> int:
    """Print the verdict on a file, and return the exit status."""
    status, line = verdict(path)
    # The file may hold letters that cannot be printed, or that would look like a second line.
    line = "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in line)
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    try:
        print(line.encode(encoding, "backslashreplace").decode(encoding), flush=True)
    except (OSError, ValueError):
        # Nobody reads the line, and Python must not fail when it writes it once more at its end.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return status


if __name__ == "__main__":
    if len(sys.argv) != 2:
        print("usage: python check_certificate.py certificate.json", file=sys.stderr)
        sys.exit(2)
    sys.exit(main(sys.argv[1]))
