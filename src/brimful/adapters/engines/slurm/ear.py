"""Whether a SIGTERM went to every process of a Slurm job, or only to its batch script."""

from __future__ import annotations

import signal
import subprocess
import time

from brimful.adapters.engines.job_users import isolation

REACHES_S = 0.5  # from the first to the last process of a job that Slurm signals


class Ear:
    """A process beside the job, in its own group: it gets a SIGTERM only if all of the job's processes do.

    `scancel --batch` and `--full` signal the batch script or its group, where the job is not.
    """

    def __init__(self) -> None:
        # It ends with us, when the pipe closes.
        command = ("/bin/sh", "-c", "read _")
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, process_group=0)

    def has_heard(self) -> bool:
        pid, until = self._process.pid, time.monotonic() + REACHES_S
        while not isolation.is_over(pid):
            if time.monotonic() > until:
                return False
            time.sleep(0.01)
        return isolation.code_unreaped(pid) == -signal.SIGTERM
