"""Languages and automata that others have measured: our name -> options of a task."""


def _table(answers: str, moves: dict[str, list[int]]) -> str:
    """Return an automaton as text: ``moves`` holds the next state from each state by each letter.

    The answer is the state.
    """
    lines = [f"start: {answers[0]}"]
    for letter, after in moves.items():
        lines += [f"{answers[q]} {letter} {answers[p]}" for q, p in enumerate(after)]
    return "\n".join(lines)


TOMITA: dict[str, dict[str, object]] = {
    f"tomita-{number}": {"pattern": pattern, "alphabet": "01"}
    for number, pattern in enumerate(
        (
            "1*",
            "(10)*",
            "0*((11)+0+|1(11)*(00)+)*1*",
            "(1|01|001)*0?0?",
            "(00|11|(01|10)(00|11)*(01|10))*",
            "(10|(0|11)(01)*(1|00))*",
            "0*1*0*1*",
        ),
        1,
    )
}
"""The languages of Tomita (1982), "Dynamic construction of finite-state automata from examples
using hill-climbing": 1* / pairs 10 / no odd run of 0 right after an odd run of 1 / no 000 / evenly
many 0 and 1 / as many 0 as 1 modulo 3 / 0*1*0*1*."""

NESTED: dict[str, dict[str, object]] = {
    f"D_{depth}": {
        "pattern": f"{'(a' * (depth - 1)}(ab)*{'b)*' * (depth - 1)}",
        "words": "balanced",
    }
    for depth in (2, 3, 4, 6, 8, 12)
}
"""Brackets a and b that are nested at most n deep: D_1 = (ab)*, D_n = (a D_(n-1) b)*. Source:
Bhattamishra et al. (2020), "On the Ability and Limitations of Transformers to Recognize Formal
Languages"."""

PREFIXES: dict[str, dict[str, object]] = {
    f"P_{skipped}_{prefix}": {"pattern": f"{'(a|b)' * skipped}{prefix}(a|b)*", "words": "balanced"}
    for prefix in ("ab", "abba")
    for skipped in (2, 4, 8)
}
"""Words in which a given word follows after any n letters. Pert et al. (2026), "Length
Generalization with Log-Depth Recurrent Units", have six prefix languages P_(n,s); this is our
reading of the name."""

EVEN_PAIRS: dict[str, dict[str, object]] = {"even-pairs": {"pattern": "a((a|b)*a)?|b((a|b)*b)?"}}
"""Words with evenly many pairs ab and ba, which are those whose first letter is also the last.
Source: Deletang et al. (2023), "Neural Networks and the Chomsky Hierarchy"."""

LANGUAGES = {**TOMITA, **EVEN_PAIRS, **NESTED, **PREFIXES}
"""Languages that a regular expression describes."""


def _monitor(*states: tuple[str, dict[str, str]]) -> dict[str, object]:
    """Return a monitor as text, from the name of each state and the calls that are ok in it.

    A call leads to the state that is given with it. Any other call is a violation and leaves the
    state as it is. The first state is the start.
    """
    calls = dict.fromkeys(call for _, allowed in states for call in allowed)
    lines = [f"start: {states[0][0]}"]
    for state, allowed in states:
        for call in calls:
            answer = "ok" if call in allowed else "violation"
            lines.append(f"{state} {call} {allowed.get(call, state)} {answer}")
    return {"rules": "\n".join(lines)}


MONITORS: dict[str, dict[str, object]] = {
    "file-handle": _monitor(
        ("closed", {"open-read": "reading", "open-write": "writing"}),
        ("reading", {"read": "reading", "close": "closed"}),
        ("writing", {"write": "writing", "close": "closed"}),
    ),
    "tcp-handshake": _monitor(
        ("listen", {"syn": "half", "rst": "listen"}),
        ("half", {"syn": "half", "ack": "open", "rst": "listen"}),
        ("open", {"ack": "open", "data": "open", "fin": "closing", "rst": "listen"}),
        ("closing", {"ack": "listen", "fin": "closing", "rst": "listen"}),
    ),
    "login": _monitor(
        ("out", {"right": "in", "wrong": "once", "unlock": "out"}),
        ("once", {"right": "in", "wrong": "twice", "unlock": "out"}),
        ("twice", {"right": "in", "wrong": "locked", "unlock": "out"}),
        ("locked", {"unlock": "out"}),
        ("in", {"use": "in", "logout": "out"}),
    ),
}
"""Protocols whose calls a monitor watches: a file handle, the server's side of a TCP connection,
and a login that three wrong passwords lock."""

TABLES: dict[str, dict[str, object]] = {
    **MONITORS,
    "flip-flop": {
        "rules": _table("01", {"write0": [0, 0], "write1": [1, 1], "ignore": [0, 1]}),
        "words": "repeating",
    },
    "modular-sum": {
        "rules": _table(
            "01234", {str(digit): [(q + digit) % 5 for q in range(5)] for digit in range(5)}
        )
    },
}
"""The bit written last, which "ignore" leaves as it is (Liu et al. (2023), "Exposing Attention
Glitches with Flip-Flop Language Modeling"), the sum of digits modulo 5, and monitors."""
