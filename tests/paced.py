"""The example's GPT, which goes no further than a file says until it is told to leave.

    python paced.py FILE [options of the example]

However fast the machine is, it is still at work when somebody wants to move it.
"""

from __future__ import annotations

import runpy
import sys
import time
from collections.abc import Callable
from pathlib import Path

from brimful.job import Run

EXAMPLE = Path(__file__).parents[1] / "examples" / "tiny_gpt.py"
after = Run.after


class Pace:
    """The test's side: how far the GPT may go."""

    def __init__(self, limit: Path, *, steps: int) -> None:
        self._limit = limit
        self.command = (sys.executable, __file__, str(limit), "--steps", str(steps))

    def may_go_to(self, step: int) -> None:
        new = self._limit.with_suffix(".new")
        new.write_text(str(step))
        new.replace(self._limit)


def waits(run: Run, step: int, save: Callable[[Path], object]) -> None:
    while step >= int(LIMIT.read_text()) and not run.told:
        time.sleep(0.05)
    after(run, step, save)


if __name__ == "__main__":
    LIMIT = Path(sys.argv.pop(1))
    setattr(Run, "after", waits)  # noqa: B010 - a type checker would mind
    runpy.run_path(str(EXAMPLE), run_name="__main__")
