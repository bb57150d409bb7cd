"""The fleet as it stands: a fold of the event log.

Only `Fleet.apply` writes. Everything else reads, so any number can be traced to the event that made it.

    waiting ──LeaseGranted──▶ starting ──LeaseStarted──▶ running ──LeaseEnded──▶ finished | failed
       ▲                          └──────── LeaseEnding ────┴──▶ stopping ──LeaseEnded──▶ cancelled
       └───────────────────────────────── requeued ─────────────────┘
"""

from __future__ import annotations

from bisect import insort
from dataclasses import dataclass

from brimful.fleet.events import (
    CancelRequested,
    Event,
    JobSubmitted,
    LeaseEnded,
    LeaseEnding,
    LeaseGranted,
    LeaseStarted,
    NodeJoined,
    NodeLeft,
)
from brimful.fleet.job import Job
from brimful.fleet.node import Node, Pool

__all__ = ["OVER", "Fleet", "JobState", "Lease", "Node", "Pool"]

OVER = frozenset({"finished", "failed", "cancelled"})


@dataclass(slots=True, kw_only=True)
class Lease:
    """A gang's hold on GPUs; the only thing that is ever billed. Written by Fleet.apply alone."""

    lease: str
    job: str
    site: str
    node: str
    gpu: str
    gpus: tuple[int, ...]
    microusd_per_gpu_hour: int
    phase: str  # granted, running, ending, ended
    granted_s: int
    started_s: int | None = None
    ended_s: int | None = None
    exit_code: int | None = None
    reason: str = ""
    requeue: bool = False

    def billed_s(self, now_s: int) -> int:
        """Seconds on the bill up to now. A lease that never ran costs nothing."""
        if self.started_s is None:
            return 0
        end_s = now_s if self.ended_s is None else self.ended_s
        return max(0, end_s - self.started_s)


@dataclass(slots=True, kw_only=True)
class JobState:
    """A job and how far it has come. Written by Fleet.apply alone."""

    job: Job
    phase: str
    submitted_s: int
    leases: list[Lease]
    ended_s: int | None = None
    exit_code: int | None = None
    reason: str = ""
    cancel_requested: bool = False

    @property
    def first_start_s(self) -> int | None:
        return next((lease.started_s for lease in self.leases if lease.started_s is not None), None)


class Fleet:
    """Nodes, jobs and leases after the first `seq` events of the log."""

    def __init__(self) -> None:
        self.seq = 0
        self.nodes: dict[str, Node] = {}
        self.jobs: dict[str, JobState] = {}
        self.leases: dict[str, Lease] = {}
        # What a tick touches, kept apart from history so that its cost does not grow with it.
        self.waiting: dict[str, JobState] = {}
        self.open_leases: dict[str, Lease] = {}
        self._free: dict[str, list[int]] = {}

    def free(self, node: str) -> tuple[int, ...]:
        """Indices of the node's GPUs that nobody holds, lowest first."""
        return tuple(self._free.get(node, ()))

    def apply(self, event: Event) -> None:
        """Take in the next event of the log."""
        match event:
            case NodeJoined():
                self._join(event)
            case NodeLeft(node=node):
                self.nodes.pop(node, None)
                self._free.pop(node, None)
            case JobSubmitted(job=job, at_s=at_s):
                assert job.job not in self.jobs, f"{job.job} was submitted twice"
                state = JobState(job=job, phase="waiting", submitted_s=at_s, leases=[])
                self.jobs[job.job] = self.waiting[job.job] = state
            case CancelRequested():
                self._cancel(event)
            case LeaseGranted():
                self._grant(event)
            case LeaseStarted(lease=name, at_s=at_s):
                lease = self.open_leases[name]
                lease.started_s = at_s
                if lease.phase == "granted":
                    lease.phase = self.jobs[lease.job].phase = "running"
            case LeaseEnding(lease=name, reason=reason, requeue=requeue):
                lease = self.open_leases[name]
                lease.phase, lease.reason, lease.requeue = "ending", reason, requeue
                self.jobs[lease.job].phase = "stopping"
            case LeaseEnded():
                self._end(event)
        self.seq += 1

    def _join(self, event: NodeJoined) -> None:
        self.nodes[event.node] = event.described()
        held = {i for lease in self.open_leases.values() if lease.node == event.node for i in lease.gpus}
        self._free[event.node] = [i for i in range(event.gpus) if i not in held]

    def _cancel(self, event: CancelRequested) -> None:
        state = self.jobs[event.job]
        if state.phase == "waiting":
            del self.waiting[event.job]
            state.phase, state.ended_s, state.reason = "cancelled", event.at_s, "cancelled while waiting"
        elif state.phase not in OVER:
            state.cancel_requested = True

    def _grant(self, event: LeaseGranted) -> None:
        state, node, free = self.jobs[event.job], self.nodes[event.node], self._free[event.node]
        assert state.phase == "waiting", f"{event.job} is {state.phase} and cannot be given GPUs"
        assert len(event.gpus) == state.job.gpus, "a gang is placed whole"
        for gpu in event.gpus:
            assert gpu in free, f"GPU {gpu} of {event.node} already has a tenant"
            free.remove(gpu)
        lease = Lease(
            lease=event.lease,
            job=event.job,
            site=node.site,
            node=event.node,
            gpu=node.gpu,
            gpus=event.gpus,
            microusd_per_gpu_hour=event.microusd_per_gpu_hour,
            phase="granted",
            granted_s=event.at_s,
        )
        self.leases[event.lease] = self.open_leases[event.lease] = lease
        state.leases.append(lease)
        state.phase = "starting"
        del self.waiting[event.job]

    def _end(self, event: LeaseEnded) -> None:
        lease = self.open_leases.pop(event.lease)
        lease.phase, lease.ended_s, lease.exit_code = "ended", event.at_s, event.exit_code
        lease.reason = lease.reason or event.reason
        node = self.nodes.get(lease.node)
        if node is not None:
            for gpu in lease.gpus:
                if gpu < node.gpus:  # the node may have been declared smaller since
                    insort(self._free[lease.node], gpu)
        state = self.jobs[lease.job]
        if lease.requeue and not state.cancel_requested:
            state.phase = "waiting"
            self.waiting[lease.job] = state
            return
        state.ended_s, state.exit_code, state.reason = event.at_s, event.exit_code, lease.reason
        if state.cancel_requested:
            state.phase = "cancelled"
        else:
            state.phase = "finished" if event.exit_code == 0 else "failed"
