"""``statemix demo``: train, compare and draw in one command."""

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar, Literal

from statemix import files
from statemix.cli.parser import Argument
from statemix.errors import RequestError, RunsFailedError
from statemix.training.progress import log_console
from statemix_lab.cli.reproduce import lost_text, show_study
from statemix_lab.cli.watch import watched


@dataclass(frozen=True)
class Demo:
    """Train BD-LRUs and an LSTM to track a permutation group, and draw how far each one gets.

    For S_3, four networks with five seeds each learn from 250 words of length 16, in under three
    minutes on two cores. For S_5 and A_5, three networks with two seeds each learn from fresh
    words, the BD-LRU by the recipe "exact", in a few minutes more. All are tested on words up to
    1,024 times longer, and certified: the table says which are proven for every length.

    The output folder receives demo.png, summary.json (the numbers of every run), index.html (a page
    of both), the results store runs.jsonl and the folder runs. After Ctrl-C, repeat the command to
    resume; finished runs are reused. If a run diverges or fails, the others continue.

    "statemix demo chess" trains one BD-LRU to follow the position of a chess game from its moves,
    proves that it is right after every game, and shows positions of a game of 100,000 plies. It
    takes a few minutes on two cores, and needs pip install 'statemix-lab[chess]'. "statemix
    demo cube" does the same with the turns of a Rubik's cube, for a million turns.
    """

    resumes: ClassVar[bool] = True

    subject: Annotated[
        Literal["groups", "chess", "cube"], Argument("[SUBJECT]", positional=True)
    ] = "groups"
    """Subject to track: permutation groups, chess or a cube."""

    group: Literal["S_3", "S_5", "A_5"] = "S_3"
    """Permutation group to track."""

    moves: str | None = None
    """For chess: a game of your own, such as "e4 e5 Nf3" or "e2e4 e7e5 g1f3", whose last position
    is shown, too. For a cube: turns such as "R U R' U2"."""

    form: Literal["flagged", "original"] = "flagged"
    """For chess: form of the tokens. The original form leaves castling and en passant out of the
    tokens. A further tracker finds both by the pieces. It follows games of Chess-World-Model, a
    benchmark."""

    games: int = 100
    """For chess in the original form: games of Chess-World-Model to follow, of its 10,000."""

    seed: int = 0
    """For chess and a cube: seed of games and weights."""

    output: Path | None = None
    """Folder of the page and the runs (if not given: demo for S_3, demo/GROUP for other groups,
    demo/chess, demo/cube)."""

    fresh: bool = False
    """Remove existing runs and train from scratch."""

    retry: bool = False
    """Retry runs that diverged or failed."""

    def run(self) -> None:
        """Train, draw, and print the table."""
        self._check_options()
        # Slow imports wait until the options have been checked.
        from statemix.training.folder import lock_folder

        original = self.form == "original"
        name = f"{self.subject}-original" if original else self.subject
        if self.subject == "groups":
            name = "" if self.group == "S_3" else self.group
        folder = self.output or Path("demo", name)
        files.make_folder("output", folder)
        with lock_folder(folder):
            if self.subject == "groups":
                self._demo_groups(folder)
                return
            from statemix_lab.cli.tracker_demo import demo_original_chess, demo_tracker

            if original:
                demo_original_chess(folder, self.seed, self.moves, self.games, fresh=self.fresh)
            else:
                demo_tracker(self.subject, folder, self.seed, self.moves, fresh=self.fresh)

    def _demo_groups(self, folder: Path) -> None:
        import torch

        from statemix.training.folder import remove_runs
        from statemix_lab.studies.page import render_page
        from statemix_lab.studies.store import Store
        from statemix_lab.studies.study import find_study
        from statemix_lab.studies.study_entries import plan

        store = Store(folder / "runs.jsonl")
        study = find_study(f"demo-{self.group}")
        entries = study.chosen("paper", "laptop")
        planned = plan(entries, folder / "runs")
        if self.fresh:
            remove_runs([one.job.folder for one in planned])
            store.remove({one.key for one in planned})
        left = study.due(planned, store, retry=self.retry)
        console = log_console()
        num_workers = min(torch.get_num_threads(), max(len(left), 1))
        console.print(
            f"{len(left)} of {len(planned)} runs on {self.group}, {num_workers} at a time. "
            "After Ctrl-C, repeat the command to resume."
        )
        began = time.monotonic()
        with watched(console, len(left)) as watch:
            study.fill(
                left,
                store,
                num_workers=num_workers,
                retry=self.retry,
                on_event=watch.on_event,
                on_end=watch.on_end,
            )
        picture = show_study(console, study, entries, store)
        if picture is not None:
            files.write_file(folder / "demo.png", picture)
            console.print(f"drawn: {folder / 'demo.png'}")
        rows = store.rows()
        page, summary = folder / "index.html", folder / "summary.json"
        files.write_file(page, render_page([study], rows, folder).encode())
        numbers = study.runs(entries, rows).drop("lengths", "published_for").to_dicts()
        files.write_file(summary, (json.dumps(numbers, indent=1) + "\n").encode())
        console.print(f"finished in {time.monotonic() - began:.0f} s; wrote {page} and {summary}")
        if lost := lost_text(planned, store):
            raise RunsFailedError(lost)

    def _check_options(self) -> None:
        """Check that options were given for their own subject alone."""
        others = ["moves", "seed"] if self.subject == "groups" else ["group", "retry"]
        others += [] if self.subject == "chess" else ["form"]
        others += [] if self.form == "original" else ["games"]
        for name in others:
            given, default = getattr(self, name), type(self).__dataclass_fields__[name].default
            if given != default:
                needs = " without --form original" if name == "games" else ""
                raise RequestError(
                    f"{name} must be absent for the subject {self.subject}{needs}, got {given}"
                )
        if not 1 <= self.games <= 10_000:
            raise RequestError(f"games must be in 1..10,000, got {self.games:,}")
        if not 0 <= self.seed < 2**63:
            raise RequestError(f"seed must be in 0..2^63 - 1, got {self.seed}")
