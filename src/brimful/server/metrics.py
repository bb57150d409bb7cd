"""Metrics for Prometheus at /metrics. Names are stable: docs/reference/metrics.md is made from this table.

Computed from the fleet on each request, so that there is nothing to keep in sync. Labels have few values by
design: phases, sites, GPU types, tenants; never a job.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator

from fastapi import APIRouter
from fastapi.responses import Response
from prometheus_client import CollectorRegistry, Histogram, generate_latest
from prometheus_client import Counter as Counting
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from brimful import __version__
from brimful.meter.exporter import Table, families
from brimful.server.api.gate import Gate
from brimful.server.auth import Access, Principal
from brimful.server.service.notify import Notifier
from brimful.server.service.reader import Reader
from brimful.units import MICROUSD

MEDIA_TYPE = "text/plain; version=0.0.4; charset=utf-8"

# All start with brimful_.
GAUGES: Table = {
    "brimful_info": (("version", "policy"), "1, with the version and the policy as labels"),
    "brimful_up": ((), "1 while the scheduler comes round, 0 while it is in trouble"),
    "brimful_gpus": (("site", "gpu"), "GPUs of the fleet, drained nodes included"),
    "brimful_gpus_held": (("site", "gpu"), "GPUs that leases hold"),
    "brimful_nodes_drained": (("site",), "nodes where nothing more starts"),
    "brimful_jobs": (("phase",), "jobs that are not over, by phase"),
    "brimful_oldest_wait_seconds": ((), "the longest wait that goes on: since submit, or since a stop"),
    "brimful_tick_seconds": ((), "how long the last tick of the scheduler took"),
    "brimful_engine_seconds": (("site", "step"), "how long a site's engine took for its last step"),
    "brimful_disk_free_bytes": ((), "free on the disk of the data folder"),
    "brimful_backup_age_seconds": ((), "since the last verified backup, where they are scheduled"),
    "brimful_backup_period_seconds": ((), "how often one is to be made"),
    "brimful_price_usd_per_gpu_hour": (("site", "gpu"), "what a lease that begins now pays"),
    "brimful_accruing_usd_per_hour": ((), "what the open leases cost in an hour, together"),
    "brimful_site_problem": (("site",), "1 while a site cannot be reached or complains"),
    "brimful_ledger_sum_usd": ((), "the sum of all accounts: zero, always"),
    "brimful_notifications_dead": ((), "notifications that nobody took after seven tries"),
}
COUNTERS: Table = {
    "brimful_events": ((), "events in the log"),
    "brimful_ticks": ((), "ticks of the scheduler"),
    "brimful_ticking_seconds": ((), "how long they took, in all"),
    "brimful_jobs_finished": ((), "jobs that finished"),
    "brimful_delay_seconds": ((), "their delay in all: finish - submit - work"),
    "brimful_first_wait_seconds": ((), "of that, waiting before the first start: not after a preemption"),
    "brimful_gpu_seconds_leased": ((), "GPU-seconds that leases have held"),
    "brimful_gpu_seconds_offered": ((), "GPU-seconds there have been since the first job"),
    "brimful_posted_usd": (("tenant",), "posted to the ledger"),
}
REQUESTS = ("brimful_http_requests", "requests answered, by method, route and status")
SECONDS = ("brimful_http_request_seconds", "how long answers took, by route")


class Metrics(Collector):
    def __init__(self, reader: Reader, notifier: Notifier | None = None) -> None:
        self._reader, self._notifier = reader, notifier
        self.registry = CollectorRegistry(auto_describe=False)
        self.registry.register(self)
        self._requests = Counting(*REQUESTS, labelnames=("method", "route", "status"), registry=self.registry)
        self._seconds = Histogram(*SECONDS, labelnames=("route",), registry=self.registry)

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        self._requests.labels(method if method.isupper() and len(method) < 8 else "?", route, status).inc()
        self._seconds.labels(route).observe(seconds)

    def collect(self) -> Iterable[Metric]:
        with self._reader.locked():
            figures = dict(self._figures())
        yield from families(GAUGES, COUNTERS, figures)

    def _figures(self) -> Iterator[tuple[str, dict[tuple[str, ...], float]]]:
        reader, fleet, now_s = self._reader, self._reader.fleet, self._reader.now_s()
        alone: tuple[str, ...] = ()
        there: Counter[tuple[str, ...]] = Counter()
        drained: Counter[tuple[str, ...]] = Counter()
        for node in fleet.nodes.values():
            there[node.site, node.gpu] += node.good_gpus
            drained[(node.site,)] += node.node in fleet.drained
        held: Counter[tuple[str, ...]] = Counter(dict.fromkeys(there, 0))
        for lease in fleet.open_leases.values():
            held[lease.site, lease.gpu] += lease.size
        phases = Counter(fleet.jobs[lease.job].phase for lease in fleet.open_leases.values())
        phases.update(
            {"waiting": len(fleet.waiting), "held": len(fleet.on_hold), "pending": len(fleet.gates.pending)}
        )
        waits = [now_s - state.waiting_since_s for state in fleet.waiting.values()]
        hourly = sum(lease.hourly_microusd for lease in fleet.open_leases.values())
        yield "brimful_info", {(__version__, reader.policy): 1}
        yield "brimful_up", {alone: 0 if reader.health.trouble() else 1}
        health = reader.health
        yield "brimful_tick_seconds", {alone: health.last_tick_s}
        yield "brimful_ticks", {alone: health.ticks}
        yield "brimful_ticking_seconds", {alone: health.ticking_s}
        yield (
            "brimful_engine_seconds",
            {(site, step): s for site, steps in health.engine_s.items() for step, s in steps.items()},
        )
        yield "brimful_disk_free_bytes", {} if health.free_bytes is None else {alone: health.free_bytes}
        if health.backup_age_s is not None:
            yield "brimful_backup_age_seconds", {alone: health.backup_age_s()}
            yield "brimful_backup_period_seconds", {alone: health.backup_period_s}
        yield "brimful_gpus", dict(there)
        yield "brimful_gpus_held", dict(held)
        yield "brimful_nodes_drained", dict(drained)
        yield "brimful_jobs", {(phase,): number for phase, number in phases.items()}
        yield "brimful_oldest_wait_seconds", {alone: max(waits, default=0)}
        yield (
            "brimful_price_usd_per_gpu_hour",
            {(pool.site, pool.gpu): price / MICROUSD for pool, price in reader.prices().items()},
        )
        yield "brimful_accruing_usd_per_hour", {alone: hourly / MICROUSD}
        yield "brimful_site_problem", {(site,): 1 for site in reader.problems()}
        yield "brimful_ledger_sum_usd", {alone: sum(reader.ledger.balances.values()) / MICROUSD}
        yield "brimful_notifications_dead", {alone: self._notifier.dead if self._notifier else 0}
        yield "brimful_events", {alone: fleet.seq}
        yield "brimful_jobs_finished", {alone: fleet.finished.jobs}
        yield "brimful_delay_seconds", {alone: fleet.finished.delay_s}
        yield "brimful_first_wait_seconds", {alone: fleet.finished.first_wait_s}
        yield "brimful_gpu_seconds_leased", {alone: fleet.leased_gpu_s(now_s)}
        yield "brimful_gpu_seconds_offered", {alone: max(0, fleet.gpu_s(now_s) - fleet.gpu_s_before_jobs)}
        yield (
            "brimful_posted_usd",
            {(tenant,): n / MICROUSD for tenant, n in reader.ledger.spent_by_tenant.items()},
        )


def make_metrics(metrics: Metrics, access: Access) -> APIRouter:
    router = APIRouter()
    # It contains tenants and their spending.
    reader = Gate(access).needs("operator")

    @router.get("/metrics")
    def read(_who: Principal = reader) -> Response:
        return Response(generate_latest(metrics.registry), media_type=MEDIA_TYPE)

    return router
