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
    for depth in (2, 3, 4, 5, 6, 8, 12)
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

_DIGITS = "0123456789"
# A number from 0 to 255.
_BYTE = "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

TEXTS: dict[str, dict[str, object]] = {
    "iso-date": {
        "pattern": "[0-9]{4}-(0[1-9]|1[0-2])-(0[1-9]|[12][0-9]|3[01])",
        "alphabet": _DIGITS + "-",
    },
    "ipv4": {"pattern": rf"({_BYTE}\.){{3}}{_BYTE}", "alphabet": _DIGITS + "."},
    "decimal-number": {
        "pattern": r"(\+|-)?([0-9]+(\.[0-9]*)?|\.[0-9]+)((e|E)(\+|-)?[0-9]+)?",
        "alphabet": _DIGITS + "+-.eE",
    },
    "http-request": {
        "pattern": r"(GET|HEAD|POST)_/[a-z/]*_HTTP/1\.[01]",
        "alphabet": "abcdefghijklmnopqrstuvwxyzADEGHOPST/.01_",
    },
    "clock-time": {"pattern": "([01][0-9]|2[0-3]):[0-5][0-9]", "alphabet": _DIGITS + ":"},
}
"""Texts that programs read: a date, an address, a number, the first line of a request (with _ for a
blank), and a time of day. Months have 31 days, and numbers of addresses no leading zeros."""

LANGUAGES = {**TOMITA, **EVEN_PAIRS, **NESTED, **PREFIXES, **TEXTS}
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


def _answering(moves: dict[str, dict[str, tuple[str, str]]]) -> dict[str, object]:
    """Return an automaton as text, from the next state and the answer of each letter."""
    lines = [f"start: {next(iter(moves))}"]
    for state, by_letter in moves.items():
        lines += [f"{state} {letter} {q} {answer}" for letter, (q, answer) in by_letter.items()]
    return {"rules": "\n".join(lines)}


def _sells(credit: int) -> dict[str, tuple[str, str]]:
    """Return what a machine does whose drinks cost 20: it keeps no more, and gives change."""

    def paid(coin: int) -> tuple[str, str]:
        return (f"has{credit + coin}", "wait") if credit + coin <= 20 else (f"has{credit}", "coin")

    return {
        **{f"coin{coin}": paid(coin) for coin in (5, 10, 20)},
        "drink": ("has0", "drink") if credit == 20 else (f"has{credit}", "wait"),
        "cancel": ("has0", "refund" if credit else "wait"),
    }


def _signal(repaired: str, *, tick: str, button: str) -> dict[str, str]:
    return {"tick": tick, "button": button, "fault": "flashing", "repair": repaired}


def _request(state: str, **changes: str) -> dict[str, tuple[str, str]]:
    """Return what a client does: unless changed, "ok" ends a request and nothing else matters."""
    usual = {"ask": f"{state} none", "ok": "idle done", "fail": f"{state} none"}
    moves = usual | {"tick": f"{state} none"} | changes
    return {letter: (move.split()[0], move.split()[1]) for letter, move in moves.items()}


CONTROLLERS: dict[str, dict[str, object]] = {
    "traffic-light": _answering(
        {
            # The answer is the lamp of the next state.
            name: {letter: (after, after.split("-")[0]) for letter, after in moves.items()}
            for name, moves in {
                "red": _signal("red", tick="green", button="red"),
                "green": _signal("green", tick="green-long", button="green-asked"),
                "green-long": _signal("green-long", tick="green-long", button="amber"),
                "green-asked": _signal("green-asked", tick="amber", button="green-asked"),
                "amber": _signal("amber", tick="red", button="amber"),
                "flashing": _signal("red", tick="flashing", button="flashing"),
            }.items()
        }
    ),
    "lift": _monitor(
        ("shut1", {"open": "open1", "up": "shut2"}),
        ("open1", {"shut": "shut1"}),
        ("shut2", {"open": "open2", "up": "shut3", "down": "shut1"}),
        ("open2", {"shut": "shut2"}),
        ("shut3", {"open": "open3", "up": "shut4", "down": "shut2"}),
        ("open3", {"shut": "shut3"}),
        ("shut4", {"open": "open4", "down": "shut3"}),
        ("open4", {"shut": "shut4"}),
    ),
    "vending-machine": _answering({f"has{credit}": _sells(credit) for credit in range(0, 25, 5)}),
    "retry-policy": _answering(
        {
            "idle": _request("idle", ask="try1 send", ok="idle none", fail="idle none"),
            "try1": _request("try1", fail="wait1a wait"),
            "try2": _request("try2", fail="wait2a wait"),
            "try3": _request("try3", fail="idle give-up"),
            "wait1a": _request("wait1a", tick="try2 send"),
            "wait2a": _request("wait2a", tick="wait2b wait"),
            "wait2b": _request("wait2b", tick="try3 send"),
        }
    ),
}
"""Controllers: a traffic light that a button asks to change, a lift of four floors that moves with
its door shut, a vending machine, and a client that asks three times and waits longer each time."""

TABLES: dict[str, dict[str, object]] = {
    **MONITORS,
    **CONTROLLERS,
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
