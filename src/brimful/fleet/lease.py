"""A gang's hold on GPUs, and a job's progress. Only Fleet.apply writes either."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from brimful.errors import Said
from brimful.fleet.capacity import Capacity
from brimful.fleet.charge import Charge
from brimful.fleet.events import Parts
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.learned.lifetimes import Kind
from brimful.fleet.node import Node
from brimful.fleet.sharing import Paces, work_done_s

LeasePhase = Literal["granted", "running", "ending", "ended"]
JobPhase = Literal[
    "pending",
    "waiting",
    "held",
    "starting",
    "running",
    "stopping",
    "finished",
    "failed",
    "stopped",
    "cancelled",
    "skipped",
]
OVER: frozenset[JobPhase] = frozenset({"finished", "failed", "stopped", "cancelled", "skipped"})
Told = Literal["leave", "stay", "stop"]
NOTICES_KEPT = 100  # in a pool whose price goes up and down there may be one a minute, for months


@dataclass(slots=True, kw_only=True)
class Lease(Charge):
    """A gang's hold on GPUs; the only thing that is ever billed."""

    lease: str
    job: str
    site: str
    node: str
    gpu: str
    gpus: tuple[int, ...]
    phase: LeasePhase
    rest: Parts = ()
    speed: float = 1.0  # useful work per second, placement included; once it is over, the average
    before: Paces = ()  # its earlier speeds, from before it started or stopped sharing its GPU
    may_share: bool = False  # whether its GPU may have a second tenant
    setup_s: int = 0  # seconds from start until useful work: the restart cost of a job that was stopped
    turn_until_s: float = 0.0  # it began in its job's turn, which lasts until then
    exit_code: int | None = None
    reason: Said | None = None
    requeue: bool = False
    runs_on: Parts = ()  # the nodes and GPUs its engine reported; empty: as granted
    exit_codes: tuple[int | None, ...] = ()  # by rank, if there are several
    was_stopped: bool = False  # it was told to end: whatever it answered, it was not done
    kept_work_s: float = 0.0  # useful work that outlived the lease
    notice_s: int | None = None  # when it will be told to end, unless the notice is withdrawn
    notice: Said | None = None  # and why
    notices: tuple[tuple[int, Told, int | None], ...] = ()  # (at, what, by); the newest `NOTICES_KEPT`
    reservation: str = ""  # the tenant's reservation that has paid for it
    is_watched: bool = False  # whether its useful work can be observed
    idle_since_s: int | None = None  # it has done no useful work since then

    def tell(self, what: Told, *, at_s: int, until_s: int | None = None) -> None:
        self.notices = (*self.notices, (at_s, what, until_s))[-NOTICES_KEPT:]

    @property
    def parts(self) -> Parts:
        """(node, GPUs) for every node of the gang."""
        return ((self.node, self.gpus), *self.rest)

    def done_s(self, until_s: float) -> float:
        """Useful work since it began, at the speeds it had."""
        if self.started_s is None:
            return 0.0
        began_s = self.started_s + self.setup_s
        if not self.before:
            return max(0.0, until_s - began_s) * self.speed
        return work_done_s(self.before, self.speed, began_s=began_s, until_s=until_s)

    def even_out(self, at_s: int) -> None:
        """It is over: replace its speeds by their average."""
        worked_s = max(0, self.billed_s(at_s) - self.setup_s)
        if self.before and worked_s:
            self.speed, self.before = self.done_s(at_s) / worked_s, ()

    def worked_s(self, now_s: int) -> float:
        """Seconds of this lease spent on work that was kept; while it runs, all but the restart.

        If it ended well by itself and its engine cannot tell what it kept, it kept everything.
        """
        is_done = self.exit_code == 0 and not self.was_stopped
        after_setup_s = max(0, self.billed_s(now_s) - self.setup_s)
        if self.ended_s is None or (is_done and not self.kept_work_s):
            return after_setup_s
        return min(after_setup_s, self.kept_work_s / self.speed) if self.speed > 0 else 0.0


@dataclass(slots=True)
class JobState:
    """A job and its progress."""

    job: Job
    serial: int  # its number among jobs in the log: breaks every tie
    shape: int  # jobs of one shape fit in the same places
    submitted_s: int
    waiting_since_s: int = 0
    phase: JobPhase = "waiting"
    leases: list[Lease] = field(default_factory=list)
    kept_work_s: float = 0.0  # useful work in its last checkpoint
    lost_work_s: float = 0.0  # work that counted as kept but was missing at a later start
    overrun_microusd: int = field(default=0, repr=False)  # of its ended leases: what nobody is billed
    run_s: int = 0  # seconds billed for leases that have ended
    run_s_on: dict[str, int] | None = None  # the same by GPU type, for a job that was requeued
    failures: int = 0
    preemptions: int = 0
    # The site that failed or evicted it last, and until when it goes elsewhere if possible.
    avoid_site: str = ""
    avoid_until_s: int = 0
    ended_s: int | None = None
    exit_code: int | None = None
    reason: Said | None = None
    cancel_requested: bool = False
    blocked_since_s: int | None = None  # since when its size alone keeps it out of a market pool
    blocked_s: int = 0  # total of earlier such stretches
    is_answered: bool = False  # whether it was told if its deadline can be kept: then only a promise counts
    hold: bool = False  # it does not start until it is released
    hold_reason: Said | None = None
    ready_s: int = -1  # since when it asks for GPUs: from submit, or from the end of the jobs it depends on
    released_s: int = 0  # when it was last released from a hold
    kin: Kind | None = field(default=None, init=False, repr=False, compare=False)  # what is known of its like

    def __post_init__(self) -> None:
        if self.ready_s < 0:
            self.ready_s = self.submitted_s

    @property
    def first_start_s(self) -> int | None:
        return next((lease.started_s for lease in self.leases if lease.started_s is not None), None)

    @property
    def open_lease(self) -> Lease | None:
        """The lease it holds now: at most one, the last."""
        return self.leases[-1] if self.leases and self.leases[-1].ended_s is None else None

    @property
    def kept_until_s(self) -> int:
        """When its newest checkpoint was sealed, by what its leases kept; 0: there is none."""
        for lease in reversed(self.leases):
            if lease.kept_work_s > 0 and lease.started_s is not None and lease.speed > 0:
                return lease.started_s + round(lease.kept_work_s / lease.speed)
        return 0

    def worked_s(self, now_s: int) -> float:
        """Useful work that its leases did and kept."""
        return sum([lease.worked_s(now_s) * lease.speed for lease in self.leases])

    def lose(self, *, proven_s: int) -> float:
        """The new lease resumes from a checkpoint sealed at `proven_s`: what was kept later is lost.

        Returns how much that is; each lease's own part of it shrinks.
        """
        lost = 0.0
        for lease in self.leases[:-1]:
            began_s = lease.started_s if lease.started_s is not None else proven_s
            proven = min(lease.kept_work_s, lease.speed * max(0, proven_s - began_s))
            lost += lease.kept_work_s - proven
            lease.kept_work_s = proven
        self.kept_work_s -= lost
        self.lost_work_s += lost
        return lost

    def blocked_for_s(self, now_s: int) -> int:
        """How long a market has kept it out although it would pay the price, since it last held GPUs."""
        going = 0 if self.blocked_since_s is None else max(0, now_s - self.blocked_since_s)
        return self.blocked_s + going

    def delay_s(self, now_s: int) -> float:
        """Finish - ready - work, with now as finish if it is not over: waiting, restarts, and lost work.

        Work is the time that the kept work took on the GPUs it got. Slower GPUs make a job longer, not later.
        """
        until_s = now_s if self.ended_s is None else self.ended_s
        worked_s = sum([lease.worked_s(now_s) for lease in self.leases])
        return max(0.0, until_s - self.ready_s - worked_s)

    def attained_s(self, now_s: int) -> float:
        """Seconds its whole gang has held GPUs: what least-attained-service compares, per GPU."""
        if self.leases:
            last = self.leases[-1]
            if last.ended_s is None and last.started_s is not None and now_s > last.started_s:
                return self.run_s + now_s - last.started_s
        return self.run_s

    def cost_microusd(self, now_s: int) -> int:
        """What its leases cost so far, including the running one."""
        return sum([lease.cost_microusd(now_s) for lease in self.leases])

    def billed_microusd(self, now_s: int) -> int:
        """The same without what ran over a hard budget, its own or its tenant's: the operator bears that."""
        cost, budget = self.cost_microusd(now_s) - self.overrun_microusd, self.job.budget_microusd
        return cost if budget is None else min(cost, budget)

    def remaining_s(self, now_s: int) -> float | None:
        """Predicted useful work left; None without a prediction, 0 if the prediction has run out."""
        predicted_s = self.job.predicted_work_s
        if predicted_s is None:
            return None
        done = self.kept_work_s
        if self.leases:
            last = self.leases[-1]
            if last.ended_s is None:
                done += last.done_s(now_s)
        return predicted_s - done if predicted_s > done else 0.0


def limit_s(state: JobState, lease: Lease) -> int | None:
    """When this lease brings its job to its budget or its longest run, whichever is first."""
    job = state.job
    if lease.started_s is None:
        return None
    longest_s = None if job.max_run_s is None else lease.started_s + max(0, job.max_run_s - state.run_s)
    if job.budget_microusd is None:
        return longest_s
    spent = sum(each.cost_microusd(lease.started_s) for each in state.leases[:-1])
    broke_s = lease.reaches_s(max(0, job.budget_microusd - spent))
    return min((at_s for at_s in (longest_s, broke_s) if at_s is not None), default=None)


def allotted(capacity: Capacity, lease: Lease, runs_on: Parts, *, first: Node | None) -> Parts | None:
    """The GPUs to count as held by a lease that runs there; None if that is impossible: others hold them.

    If the engine chooses by count, its indices are not ours: any free ones stand for them.
    """
    own = dict(lease.parts)
    found = []
    for name, gpus in runs_on:
        slot = capacity.by_name.get(name)
        if slot is None or first is None or lease.gpu_milli < WHOLE_GPU:
            return None
        # Its price and seller are those of its first node.
        if (slot.pool, slot.node.owner) != (first.pool, first.owner):
            return None
        free = sorted({*own.get(name, ()), *slot.free})
        if slot.node.chosen_by == "index":
            free = [i for i in gpus if i in free]
        elif len(gpus) == len(own.get(name, ())):
            free = list(own[name])
        found.append((name, tuple(free[: len(gpus)])))
    is_whole = [len(gpus) for _, gpus in found] == [len(gpus) for _, gpus in runs_on]
    return tuple(found) if is_whole and sum(len(gpus) for _, gpus in found) == lease.size else None
