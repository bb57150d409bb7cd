"""How long jobs would take if all were served in the order they came: the measure of who is late.

Whatever the order, a busy fleet works off the same GPU-seconds, so the work that is owed to those who are
here when a job comes, over all GPUs, is about how long it would wait in line. Gangs that block those behind
them would make it longer, so it is a little less than first come, first served takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from brimful.fleet.capacity import Capacity
from brimful.fleet.hazards import MOST_S, Kinds
from brimful.fleet.job import WHOLE_GPU
from brimful.fleet.lease import JobState, Lease
from brimful.fleet.lengths import Lengths
from brimful.fleet.node import Pool


@dataclass(slots=True)
class Backlog:
    in_line: Lengths = field(default_factory=Lengths)  # finish - submit, first come, first served
    kinds: Kinds = field(default_factory=Kinds, compare=False)
    _gpu_s: float = 0.0  # owed to all who are here, as of `_at_s`
    _busy: float = 0.0  # GPUs that work off what was predicted
    _at_s: int = 0
    _rated: int = 0  # jobs that are here and tell how fast they are on each type of GPU
    _rates: dict[str, float] = field(default_factory=dict)  # the sum of these, of each job's best, by type

    def submitted(
        self, state: JobState, capacity: Capacity, able: Mapping[Pool, float], *, at_s: int
    ) -> None:
        """`able`: the pools that could hold it, and how fast it is there; in line it takes as much longer."""
        self._pass(at_s)
        state.kind = self.kinds.of(state.job)
        gpus, usable = capacity.gpus, sum([capacity.pools[pool].gpus for pool in able])
        if usable:
            done = sum([capacity.pools[pool].gpus * speed for pool, speed in able.items()])
            state.line_speed = done / usable
        state.ahead_s = max(0.0, self._gpu_s) / gpus if gpus else 0.0
        self._owe(state)
        state.in_line_s = state.ahead_s + state.owed_s
        self.in_line.count(state.in_line_s)
        self._rate(state, 1)

    def worth(self) -> dict[str, float]:
        """How fast the jobs that are here would be on a GPU of each type, of each one's best, on average."""
        jobs = max(1, self._rated)
        return {gpu: max(total / jobs, 1e-9) for gpu, total in self._rates.items()}

    def left(self, state: JobState) -> None:
        """It is over."""
        self.over(state)
        self._rate(state, -1)

    def _rate(self, state: JobState, sign: int) -> None:
        rates = state.job.rates
        best = max([rate for _, rate in rates], default=0.0)
        if best:
            self._rated += sign
            for gpu, rate in rates:
                self._rates[gpu] = self._rates.get(gpu, 0.0) + sign * rate / best

    def started(self, state: JobState, lease: Lease, *, at_s: int) -> None:
        if state.job.predicted_work_s is not None:
            self._pass(at_s)
            state.draining = _width(state) * lease.speed / state.line_speed
            self._busy += state.draining

    def ended(self, state: JobState, lease: Lease, *, over: bool, at_s: int) -> None:
        """It has left its GPUs; what it kept counts already."""
        had_work_s = state.had_work_s
        state.had_work_s += max(0, lease.billed_s(at_s) - lease.setup_s) * lease.speed
        if state.kind is not None and state.had_work_s > had_work_s:
            state.kind.count(had_work_s, state.had_work_s, over=over)
            if state.job.predicted_work_s is None:
                before_s = state.in_line_s
                state.in_line_s = state.ahead_s + state.had_work_s / state.line_speed
                self.in_line.count(state.in_line_s, before_s=before_s)
        if state.draining and lease.started_s is not None:
            self._pass(at_s)
            self._busy -= state.draining
            self._gpu_s += (at_s - lease.started_s) * state.draining
            state.draining = 0.0
        self.over(state)
        self._owe(state)

    def over(self, state: JobState) -> None:
        """Nothing is owed to it any more."""
        self._gpu_s -= state.owed_s * _width(state)
        state.owed_s = 0.0

    def _owe(self, state: JobState) -> None:
        predicted_s, left_s = state.job.predicted_work_s, 0.0
        if predicted_s is not None:
            left_s = max(0.0, predicted_s - state.kept_work_s)
        elif state.kind is not None:
            left_s = state.kind.mean_left_s(state.had_work_s)
        state.owed_s = min(MOST_S, left_s / state.line_speed)
        self._gpu_s += state.owed_s * _width(state)

    def _pass(self, at_s: int) -> None:
        self._gpu_s -= self._busy * (at_s - self._at_s)
        self._at_s = at_s


def _width(state: JobState) -> float:
    return state.job.gpus * state.job.gpu_milli / WHOLE_GPU
