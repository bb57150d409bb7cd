"""Slurm's command line, with an end to how long each command may take."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterator, Sequence

from brimful.adapters.engines.slurm.text import (
    JOB_FORMAT,
    NODE_FIELDS,
    WATCH_FORMAT,
    EndRow,
    ForeignRow,
    JobRow,
    NodeRow,
    ends_from,
    everybodys_from,
    jobs_from,
    nodes_from,
    racks_from,
)
from brimful.errors import WorldFailed
from brimful.language import Plain, Seconds, say, verbatim
from brimful.scheduler.ports import CannotStart

TIMEOUT_S = 30.0
SHOWN_CHARS = 300
MOST_IDS = 500  # in one command
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SLURM_CONF")
# What a submission is refused for once and for all. Anything else may pass, as a busy controller does.
REFUSED = re.compile(
    r"Invalid|not permitted|Access/permission denied|Requested node configuration is not available"
    r"|violates accounting|Unspecified|unrecognized option|Unable to open file",
    re.I,
)


class Commands:
    """`run` raises WorldFailed; so a site that does not answer is never taken for one that has nothing."""

    def __init__(self, partition: str) -> None:
        self._partition = partition

    def nodes(self) -> list[NodeRow]:
        chosen = ("-p", self._partition) if self._partition else ()
        return list(nodes_from(self.run("sinfo", "-h", "-N", *chosen, "-O", NODE_FIELDS)))

    def jobs(self, prefix: str) -> list[JobRow]:
        """Ours that Slurm remembers: the controller sends those of our user only."""
        text = self.run("squeue", "-h", "--me", "-t", "all", "-o", JOB_FORMAT)
        return list(jobs_from(text, prefix=prefix))

    def everybodys(self) -> list[ForeignRow]:
        chosen = ("-p", self._partition) if self._partition else ()
        return list(everybodys_from(self.run("squeue", "-h", "-r", "-t", "all", *chosen, "-o", WATCH_FORMAT)))

    def racks(self) -> dict[str, str]:
        try:
            return racks_from(self.run("scontrol", "-o", "show", "topology"))
        except WorldFailed:
            return {}  # this site has no topology

    def ends(self, jobs: Sequence[str]) -> list[EndRow]:
        """What accounting kept of these, where the site keeps any: in a database, or in a file."""
        asked = ("-n", "-P", "-o", "JobID,JobName,State,ExitCode", "-j", ",".join(jobs[:MOST_IDS]))
        try:
            return list(ends_from(self.run("sacct", "-X", *asked)))
        except WorldFailed:
            return []

    def submit(self, flags: Sequence[str], script: str) -> str:
        """The job's number. CannotStart where Slurm will never take it."""
        try:
            return self.run("sbatch", "--parsable", *flags, given=script).strip().partition(";")[0]
        except WorldFailed as error:
            if error.code == "slurm_failed" and REFUSED.search(error.problem):
                raise CannotStart(error.said) from error
            raise

    def signal_running(self, jobs: Sequence[str]) -> None:
        """SIGTERM to what runs under `srun`; the batch shell lives on to tell how it ended."""
        self._each(jobs, "--signal=TERM")

    def cancel_pending(self, jobs: Sequence[str]) -> None:
        self._each(jobs, "--state=PENDING")

    def end(self, jobs: Sequence[str]) -> None:
        self._each(jobs)

    def _each(self, jobs: Sequence[str], *flags: str) -> None:
        for some in _slices(jobs):
            # Its exit code says as much of a job that is over as of one that could not be reached.
            self.run("scancel", "--quiet", *flags, *some, may_fail=True)

    def run(self, *command: str, given: str = "", may_fail: bool = False) -> str:
        env = {key: os.environ[key] for key in PASSED_ON if key in os.environ}  # the server's secrets are not
        env["TZ"] = "UTC"
        try:
            done = subprocess.run(
                command, input=given, env=env, capture_output=True, text=True, check=False, timeout=TIMEOUT_S
            )
        except subprocess.TimeoutExpired as error:
            said = say("slurm.too_slow", command=command[0], limit_s=Seconds(TIMEOUT_S))
            raise WorldFailed(said, code="slurm_silent") from error
        except OSError as error:
            said = say("slurm.no_command", command=command[0], error=error.strerror or str(error))
            raise WorldFailed(said, code="slurm_missing") from error
        words = done.stderr.strip()
        if done.returncode and not (may_fail and "Unable to contact" not in words):
            shown = verbatim(words.splitlines()[-1][-SHOWN_CHARS:] if words else "-")
            said = say("slurm.failed", command=command[0], exit_code=Plain(done.returncode), words=shown)
            raise WorldFailed(said, code="slurm_failed")
        return done.stdout


def _slices(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(jobs), MOST_IDS):
        yield jobs[at : at + MOST_IDS]
