"""The time of a run, over all sessions in which it was trained."""

import time


class RunClock:
    """Counts the seconds of a run from its first session on, without the interruptions."""

    def __init__(self) -> None:
        self._before_s, self._before_cpu_s = 0.0, 0.0
        self.begin()

    def begin(self) -> None:
        """Begin a session."""
        self._began, self._cpu_began = time.monotonic(), time.process_time()

    @property
    def time_s(self) -> float:
        """Seconds so far."""
        return self._before_s + time.monotonic() - self._began

    @property
    def cpu_s(self) -> float:
        """Seconds of all processor cores so far; those of this process."""
        return self._before_cpu_s + time.process_time() - self._cpu_began

    def load(self, time_s: float, cpu_s: float) -> None:
        """Count on from what earlier sessions have counted."""
        self._before_s, self._before_cpu_s = time_s, cpu_s
