"""A machine that "statemix learn" has learned from a log."""

# states: 0 start
# events: 0 write, 1 open-read, 2 open-write, 3 close, 4 read
# answers: 0 violation, 1 ok
EVENTS = {'write': 0, 'open-read': 1, 'open-write': 2, 'close': 3, 'read': 4}
ANSWERS = ('violation', 'ok')
# The state after each event, and the number of the answer; -1 where the log shows nothing.
TRANSITIONS = [[0, 0, 0, 0, 0]]
NUMBERS = [[0, 1, 1, 1, 0]]


class Machine:
    """Answers one event after the other."""

    def __init__(self) -> None:
        self.state = 0

    def step(self, event: str) -> str | None:
        """Return the answer to an event; None where the log has no label."""
        number = EVENTS[event]
        after, answer = TRANSITIONS[self.state][number], NUMBERS[self.state][number]
        if after < 0:
            raise ValueError(f"the log never shows {event} in state {self.state}")
        self.state = after
        return None if answer < 0 else ANSWERS[answer]
