"""Slurm's command line, with a time limit on each command."""

from __future__ import annotations

import atexit
import contextlib
import os
import re
import secrets
import shlex
import shutil
import signal
import subprocess
import tempfile
import threading
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path

from brimful.adapters.engines.slurm.options import SlurmOptions
from brimful.adapters.engines.slurm.text import (
    END_FIELDS,
    HOLDERS_FORMAT,
    HOLDING,
    JOB_FORMAT,
    NODE_FIELDS,
    WATCH_FORMAT,
    EndRow,
    ForeignRow,
    JobRow,
    NodeRow,
    ends_from,
    everybodys_from,
    holders_from,
    jobs_from,
    marked,
    nodes_from,
    racks_from,
    strange,
)
from brimful.adapters.engines.ssh import command as ssh
from brimful.adapters.sites import Site
from brimful.errors import BadInput, WorldFailed
from brimful.language import Plain, Quoted, Seconds, Size, say, verbatim
from brimful.scheduler.ports import CannotStart

TIMEOUT_S = 30.0
SHOWN_CHARS = 300
MOST_BYTES = 256 << 20  # of output: a million jobs
MOST_IDS = 500  # per command
PASSED_ON = ("PATH", "HOME", "USER", "LOGNAME", "LANG", "LC_ALL", "SLURM_CONF")
# Permanent reasons to refuse a submission. Anything else may pass, such as a busy controller.
REFUSED = re.compile(
    r"Invalid|not permitted|Access/permission denied|Requested node configuration is not available"
    r"|violates accounting|Unspecified|unrecognized option|Unable to open file",
    re.I,
)


SERVER_TIME = re.compile(r"sdiag output at [^(\n]*\((\d{1,12})\)")


class Commands:
    """`run` raises WorldFailed, so a site that does not answer is never taken for an empty one."""

    def __init__(self, partition: str, through: Sequence[str] = (), users: Sequence[str] = ()) -> None:
        """`through`: a prefix for each command, if Slurm is not on this machine.

        `users`: who our jobs run as; none: the current user.
        """
        self._partition, self._through = partition, list(through)
        self._whose = f"--users={','.join(users)}" if users else "--me"

    def nodes(self) -> list[NodeRow]:
        chosen = ("-p", self._partition) if self._partition else ()
        mark = f"#{secrets.token_hex(4)}"  # must not start with a digit, which would extend a field's width
        fields = ",".join(f"{each}{mark}" for each in NODE_FIELDS)
        found = list(nodes_from(self.run("sinfo", "-h", "-N", *chosen, "-O", fields), mark=mark))
        if not found:  # sinfo prints nothing and exits with 0 for a missing partition
            known = ", ".join(sorted(set(self.run("sinfo", "-h", "-o", "%R").split())))
            said = say("slurm.no_nodes", partition=Quoted(self._partition), known=known)
            raise WorldFailed(said if self._partition else say("slurm.no_gpus"), code="slurm_no_nodes")
        return found

    def jobs(self, prefix: str) -> list[JobRow]:
        """Our jobs that Slurm remembers: the controller sends only those of our users."""
        mark = f"{secrets.token_hex(4)}|"  # nobody can have put it into a name
        text = self.run("squeue", "-h", self._whose, "-t", "all", "-o", f"{mark}{JOB_FORMAT}")
        return list(jobs_from(marked(text, mark), prefix=prefix))

    def everybodys(self) -> list[ForeignRow]:
        chosen = ("-p", self._partition) if self._partition else ()
        return list(everybodys_from(self.run("squeue", "-h", "-r", "-t", "all", *chosen, "-o", WATCH_FORMAT)))

    def holders(self, but: Collection[str]) -> dict[str, list[str]]:
        """By node, the users whose jobs hold GPUs there, without the jobs with these numbers."""
        states = ",".join(sorted(HOLDING))
        return holders_from(self.run("squeue", "-h", "-t", states, "-o", HOLDERS_FORMAT), but=but)

    def racks(self) -> dict[str, str]:
        try:
            return racks_from(self.run("scontrol", "-o", "show", "topology"))
        except WorldFailed:
            return {}  # no topology at this site

    def clock_s(self) -> int | None:
        """The controller's clock, if it tells."""
        try:
            found = SERVER_TIME.search(self.run("sdiag"))
        except WorldFailed:
            return None
        return None if found is None else int(found[1])

    def ends(self, jobs: Sequence[str]) -> list[EndRow]:
        """What accounting kept of these, if the site keeps any, in a database or in a file."""
        mark = secrets.token_hex(4)
        asked = ("sacct", "-X", "-n", "-P", f"--delimiter={mark}", "-o", END_FIELDS, "-j")
        found: list[EndRow] = []
        with contextlib.suppress(WorldFailed):
            for some in _slices(jobs):
                found += ends_from(self.run(*asked, ",".join(some)), mark=mark)
        return found

    def submit(self, flags: Sequence[str], script: str) -> str:
        """The job's number. CannotStart if Slurm will never accept it."""
        try:
            said = self.run("sbatch", "--parsable", *flags, given=script)
        except WorldFailed as error:
            if error.code == "slurm_failed" and REFUSED.search(error.problem):
                raise CannotStart(error.said) from error
            raise
        job = said.strip().partition(";")[0]
        if not job.isdecimal():  # it may have been accepted all the same: the next look finds it by name
            raise strange("sbatch", said)
        return job

    def wake(self, jobs: Sequence[str]) -> None:
        """Make their runners look for new files. Other processes of the job may get it too; SIGURG is ignored
        by any process that does not handle it."""
        self._each(jobs, "--full", "--signal=URG")

    def cancel_pending(self, jobs: Sequence[str]) -> None:
        self._each(jobs, "--state=PENDING")

    def end(self, jobs: Sequence[str]) -> None:
        self._each(jobs)

    def _each(self, jobs: Sequence[str], *flags: str) -> None:
        for some in _slices(jobs):
            # Its exit code does not tell a job that is over from one that could not be reached.
            self.run("scancel", "--quiet", *flags, *some, may_fail=True)

    def run(self, *command: str, given: str = "", may_fail: bool = False) -> str:
        names = (*PASSED_ON, *ssh.PASSED_ON) if self._through else PASSED_ON
        env = {key: os.environ[key] for key in names if key in os.environ}  # without the server's secrets
        env["TZ"] = "UTC"
        full = [*self._through, shlex.join(("env", "TZ=UTC", *command))] if self._through else command
        try:
            done = _run(full, given, env)
        except subprocess.TimeoutExpired as error:
            said = say("slurm.too_slow", command=command[0], limit_s=Seconds(TIMEOUT_S))
            raise WorldFailed(said, code="slurm_silent") from error
        except OSError as error:
            said = say("slurm.no_command", command=command[0], error=error.strerror or str(error))
            raise WorldFailed(said, code="slurm_missing") from error
        if len(done.stdout) > MOST_BYTES:
            said = say("slurm.too_much", command=command[0], most=Size(MOST_BYTES))
            raise WorldFailed(said, code="slurm_strange")
        words = done.stderr.strip()
        if self._through and done.returncode == ssh.FAILED:
            shown = verbatim(words.splitlines()[-1][-SHOWN_CHARS:] if words else "-")
            raise WorldFailed(say("slurm.ssh_failed", words=shown), code="slurm_unreachable")
        if done.returncode and not (may_fail and "Unable to contact" not in words):
            shown = verbatim(words.splitlines()[-1][-SHOWN_CHARS:] if words else "-")
            said = say("slurm.failed", command=command[0], exit_code=Plain(done.returncode), words=shown)
            raise WorldFailed(said, code="slurm_failed")
        return done.stdout


def _run(command: Sequence[str], given: str, env: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    """With limits on its run time and on how much output is read."""
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as asked:
        asked.write(given.encode())
        asked.seek(0)
        with subprocess.Popen(
            command, env=env, stdin=asked, stdout=subprocess.PIPE, stderr=said, process_group=0
        ) as process:
            late = threading.Event()

            def end() -> None:  # with all its children: one that holds the pipe would block us
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)

            def give_up() -> None:
                late.set()
                end()

            timer = threading.Timer(TIMEOUT_S, give_up)
            timer.start()
            try:
                assert process.stdout is not None
                printed = process.stdout.read(MOST_BYTES + 1)
                if len(printed) > MOST_BYTES:
                    end()
            finally:
                timer.cancel()
        if late.is_set():
            raise subprocess.TimeoutExpired(command, TIMEOUT_S)
        said.seek(max(0, said.seek(0, os.SEEK_END) - SHOWN_CHARS * 4))
        words = said.read().decode(errors="replace")
    return subprocess.CompletedProcess(command, process.returncode, printed.decode(errors="replace"), words)


def commands_at(site: Site, options: SlurmOptions, users: Sequence[str] = ()) -> Commands:
    """On this machine, or over `ssh` on a login node."""
    if not site.address:
        return Commands(options.partition, users=users)
    if not ssh.ADDRESS.fullmatch(site.address):
        raise BadInput(say("sites.bad_value", site=site.site, key="address", value=Quoted(site.address[:60])))
    # Short: a socket's path has at most 107 characters.
    sockets = Path(tempfile.mkdtemp(prefix="brimful-ssh-"))
    atexit.register(shutil.rmtree, sockets, ignore_errors=True)
    return Commands(options.partition, ssh.ssh_to(site.address, *ssh.shared(sockets), *options.ssh), users)


def _slices(jobs: Sequence[str]) -> Iterator[Sequence[str]]:
    for at in range(0, len(jobs), MOST_IDS):
        yield jobs[at : at + MOST_IDS]
