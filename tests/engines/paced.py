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

after = Run.after


def waits(run: Run, step: int, save: Callable[[Path], object]) -> None:
    while step >= int(LIMIT.read_text()) and not run.told:
        time.sleep(0.05)
    after(run, step, save)


if __name__ == "__main__":
    LIMIT = Path(sys.argv.pop(1))
    setattr(Run, "after", waits)  # noqa: B010 - a type checker would mind
    runpy.run_path(str(Path(__file__).parents[2] / "examples" / "tiny_gpt.py"), run_name="__main__")
