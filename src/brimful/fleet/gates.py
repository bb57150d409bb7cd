"""Jobs that may not ask for GPUs yet: others must end first, or their array is at its limit.

Such a job is `pending`. It is not demand: no order, quota, price or report counts it before its gate opens,
and its wait is counted from then on.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from brimful.fleet.events import ArraySubmitted
from brimful.fleet.job import Job
from brimful.fleet.lease import OVER, JobState
from brimful.language import Sentence, say


@dataclass(slots=True)
class Array:
    """One submission that became many jobs, its tasks."""

    job: Job  # as it was submitted
    indices: tuple[int, ...]
    at_most: int | None  # tasks that may ask for or hold GPUs at once
    unfinished: dict[str, JobState] = field(default_factory=dict)  # tasks that are not over
    queued: dict[str, None] = field(default_factory=dict)  # those of them beyond `at_most`, in order
    ended: dict[str, int] = field(default_factory=dict)  # phase -> tasks that are over
    gone: int = 0  # tasks that have left memory
    ended_run_s: int = 0  # of tasks that are over
    ended_microusd: int = 0

    def run_s(self, now_s: int) -> int:
        """Seconds billed for all its tasks."""
        return self.ended_run_s + round(sum(each.attained_s(now_s) for each in self.unfinished.values()))

    def cost_microusd(self, now_s: int) -> int:
        """The cost of all its tasks so far."""
        return self.ended_microusd + sum(each.billed_microusd(now_s) for each in self.unfinished.values())

    def phases(self) -> dict[str, int]:
        """How many of its tasks are in each phase."""
        found = dict(self.ended)
        for state in self.unfinished.values():
            found[state.phase] = found.get(state.phase, 0) + 1
        return found


@dataclass(slots=True)
class Gates:
    arrays: dict[str, Array] = field(default_factory=dict)
    pending: dict[str, JobState] = field(default_factory=dict)
    # Pending jobs that can never start, and the job or array that did not end as they required.
    doomed: dict[str, str] = field(default_factory=dict)
    _followers: dict[str, dict[str, str]] = field(default_factory=dict)  # job or array -> waiting job -> rule
    _unmet: dict[str, set[str]] = field(default_factory=dict)  # pending job -> what must end first

    def array(self, event: ArraySubmitted) -> None:
        self.arrays[event.job.job] = Array(event.job, event.indices, event.at_most)

    def submitted(self, state: JobState, jobs: Mapping[str, JobState]) -> bool:
        """Whether it may ask for GPUs at once."""
        job = state.job
        if job.array:
            array = self.arrays[job.array]
            if array.at_most is not None and len(array.unfinished) - len(array.queued) >= array.at_most:
                array.queued[job.job] = None
            array.unfinished[job.job] = state
        unmet = set()
        for name, rule in job.after:
            phases = self._phases(name, jobs)
            if not phases <= OVER:
                self._followers.setdefault(name, {})[job.job] = rule
                unmet.add(name)
            elif rule == "ok" and not phases <= {"finished"}:
                self.doomed[job.job] = name
        if unmet:
            self._unmet[job.job] = unmet
        if self._is_open(job):
            return True
        self.pending[job.job] = state
        return False

    def over(self, state: JobState) -> Iterator[JobState]:
        """Jobs whose gate opens now that this one is over; those that required another end are `doomed`."""
        job = state.job
        self._forget(job)
        array = self.arrays.get(job.array)
        freed: list[str] = []
        if array is not None:
            had_slot = job.job not in array.queued
            array.queued.pop(job.job, None)
            del array.unfinished[job.job]
            array.ended_run_s += state.run_s
            array.ended_microusd += state.billed_microusd(state.ended_s or 0)
            array.ended[state.phase] = array.ended.get(state.phase, 0) + 1
            if had_slot and array.queued:
                freed.append(first := next(iter(array.queued)))
                del array.queued[first]
        freed += self._settle(job.job, ok=state.phase == "finished")
        if array is not None and not array.unfinished:
            freed += self._settle(job.array, ok=array.ended.keys() <= {"finished"})
        for name in freed:
            if name in self.pending and self._is_open(self.pending[name].job):
                yield self.pending.pop(name)

    def left(self, job: Job) -> None:
        """The job leaves memory; the last task takes its array with it."""
        if job.array:
            array = self.arrays[job.array]
            array.gone += 1
            if array.gone == len(array.indices):
                del self.arrays[job.array]

    def all_doomed(self) -> dict[str, str]:
        """Jobs that can never start, with the job or array that is the cause; their dependents come last."""
        found = dict(self.doomed)
        todo = list(found)
        for name in todo:
            array = self.pending[name].job.array
            for of in (name, array) if array else (name,):
                for follower, rule in self._followers.get(of, {}).items():
                    if rule == "ok" and follower not in found:
                        found[follower] = of
                        todo.append(follower)
        return found

    def why(self, job: Job) -> Sentence:
        """What it waits for."""
        unmet = self._unmet.get(job.job)
        if unmet is None and job.job in self.doomed:
            unmet = {self.doomed[job.job]}  # until the next tick skips it
        if unmet:
            return say("fleet.starts_after", jobs=", ".join(sorted(unmet)))
        return say("fleet.array_at_limit", array=job.array, at_most=self.arrays[job.array].at_most or 0)

    def _is_open(self, job: Job) -> bool:
        queued = bool(job.array) and job.job in self.arrays[job.array].queued
        return not queued and job.job not in self._unmet and job.job not in self.doomed

    def _phases(self, name: str, jobs: Mapping[str, JobState]) -> set[str]:
        """The phases of a job or of an array's tasks; empty if it has left memory: submit checked it then."""
        if name in self.arrays:
            return set(self.arrays[name].phases())
        return {jobs[name].phase} if name in jobs else set()

    def _settle(self, ended: str, *, ok: bool) -> Iterator[str]:
        for name, rule in self._followers.pop(ended, {}).items():
            unmet = self._unmet.get(name, set())
            unmet.discard(ended)
            if not unmet:
                self._unmet.pop(name, None)
            if rule == "ok" and not ok:
                self.doomed[name] = ended
            yield name

    def _forget(self, job: Job) -> None:
        self.pending.pop(job.job, None)
        self.doomed.pop(job.job, None)
        for name in self._unmet.pop(job.job, ()):
            self._followers[name].pop(job.job, None)
