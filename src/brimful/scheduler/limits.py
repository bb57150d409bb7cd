"""Limits within a queue: GPUs one user may hold at once, and GPUs of one type the queue may hold."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from brimful.fleet.job import Job
from brimful.fleet.node import Pool
from brimful.fleet.state import Fleet
from brimful.language import Sentence, say
from brimful.scheduler.quotas import queue_of
from brimful.scheduler.rules import Quota, Rules


class Limits:
    """What is held, or will be after the current decision, in queues that have limits."""

    def __init__(self, fleet: Fleet, rules: Rules) -> None:
        self._queues = {quota.queue: quota for quota in rules.quotas if quota.has_limits}
        self._by_user: Counter[tuple[str, str]] = Counter()
        self._by_type: Counter[tuple[str, str]] = Counter()
        for lease in fleet.open_leases.values():
            self.take(fleet.jobs[lease.job].job, (lease.gpu,))

    def take(self, job: Job, types: Collection[str]) -> None:
        queue = queue_of(job)
        if queue in self._queues:
            self._by_user[queue, job.user] += job.gpus
            for gpu in types:
                self._by_type[queue, gpu] += job.gpus

    def over_user(self, job: Job) -> Sentence | None:
        """Why its user may not hold more of its queue now."""
        quota = self._queues.get(queue_of(job))
        if quota is None or quota.user_gpus is None:
            return None
        held = self._by_user[quota.queue, job.user]
        if held + job.gpus <= quota.user_gpus:
            return None
        return say(
            "scheduler.user_limit",
            queue=quota.queue,
            user=job.user,
            held=held,
            gpus=job.gpus,
            most=quota.user_gpus,
        )

    def over_type(self, job: Job, types: Collection[str]) -> Sentence | None:
        """Why its queue may not hold more GPUs of any of these types now."""
        quota = self._queues.get(queue_of(job))
        if quota is None or not quota.type_gpus or not types:
            return None
        found = [self._over_one(quota, job, gpu) for gpu in sorted(types)]
        over = [said for said in found if said is not None]
        if len(over) < len(found):
            return None
        return next((said for said in over if said.code == "scheduler.type_limit"), over[0])

    def _over_one(self, quota: Quota, job: Job, gpu: str) -> Sentence | None:
        most = dict(quota.type_gpus).get(gpu)
        held = self._by_type[quota.queue, gpu]
        if most is None or held + job.gpus <= most:
            return None
        if job.gpus > most:
            return say("scheduler.above_queue_type", queue=quota.queue, gpu=gpu, gpus=job.gpus, most=most)
        return say("scheduler.type_limit", queue=quota.queue, gpu=gpu, held=held, gpus=job.gpus, most=most)

    def open(self, job: Job, pools: Sequence[Pool]) -> list[Pool]:
        """The pools of types that its queue may hold more of."""
        return [pool for pool in pools if self.over_type(job, (pool.gpu,)) is None]
