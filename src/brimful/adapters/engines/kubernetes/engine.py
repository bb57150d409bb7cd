"""The Kubernetes engine: brimful decides on which nodes a lease runs, Kubernetes runs it there.

A lease is a record (a ConfigMap), a Secret with its order and one Pod per rank (manifests.py). A Pod runs the
same runner as every engine (rank.py). Everything needed after a restart is in the cluster; the site's folder
here holds logs and the environments of jobs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, Unpack

from brimful.adapters.capabilities import LogPiece, SeenJob
from brimful.adapters.engines.cluster import HELD_S, ClusterEngine, Given
from brimful.adapters.engines.devices import why_strange
from brimful.adapters.engines.kubernetes import inventory, look, manifests, watched
from brimful.adapters.engines.kubernetes.client import Api, Rejected, Thing
from brimful.adapters.engines.kubernetes.look import Rank
from brimful.adapters.engines.kubernetes.manifests import Place, Record
from brimful.adapters.engines.kubernetes.options import KubernetesOptions, toleration, volume
from brimful.adapters.engines.kubernetes.records import Records
from brimful.adapters.engines.kubernetes.spool import Spool
from brimful.adapters.engines.lease_folders import each_lease
from brimful.adapters.objects.store import below
from brimful.adapters.sites import Site, Surroundings, needs_extra, options_of
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.arrays import task_env
from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.state import Node
from brimful.language import Number, Size, say, verbatim
from brimful.scheduler.ports import CannotStart, Failures, Observation, Start

AT_ONCE = 8  # concurrent requests
TRIES = 5  # to change a record that others change too
SLOW_LIST_S, REST = 0.2, 10  # after listing all Pods takes longer than this, pause for REST times as long
PULLS = 8  # running ranks whose logs are fetched at each look
ORPHAN_S = 60.0  # a lease that nobody has asked about for this long is an orphan
KEPT_S, SWEEP_S = 7 * 86400, 3600.0  # of records of finished leases, and how often the old ones go
CODE_BYTES = 16 * manifests.PIECE_BYTES  # limit for packed code, which the cluster's database has to hold


def kubernetes_site(site: Site, given: Surroundings) -> KubernetesEngine:
    """Factory for the entry point `kubernetes`."""
    options = options_of(site, KubernetesOptions)
    needs_extra(site, "kubernetes")
    for each in options.tolerations:
        toleration(each)
    for path, source in options.volumes.items():
        volume(path, source, "volume")
    if site.address:
        raise BadInput(say("sites.no_address", site=site.site, engine=site.engine))
    if not options.image and site.mode == "run":
        raise BadInput(say("sites.option_missing", site=site.site, engine=site.engine, key="image"))
    if (users := given.runs_as(1)) is not None and users.users:
        raise BadInput(say("kubernetes.no_job_users", site=site.site))
    return KubernetesEngine(
        given.folder,
        options,
        site=site,
        microusd_per_gpu_hour=given.price_of(site),
        log_bytes=given.log_bytes,
        code=given.code,
        store_env=given.store_env_of(site),
    )


class KubernetesEngine(ClusterEngine):
    def __init__(
        self, root: Path, options: KubernetesOptions, *, site: Site, log_bytes: int, **given: Unpack[Given]
    ) -> None:
        super().__init__(root, site=site, log_bytes=log_bytes, **given)
        self._options = options
        self._api = Api(
            site=site.site,
            kubeconfig=options.kubeconfig,
            context=options.context,
            namespace=options.namespace,
        )
        self._spool = Spool(root, self._api, log_bytes=log_bytes)
        self.deployment = options.deployment or self.identity[:12]
        self._records = Records(self._api, self.deployment, sends=bool(site.checkpoints))
        self._tolerations = [toleration(each) for each in options.tolerations]
        self._places: dict[str, Place] = {}
        self._gone: dict[str, int | None] = {}  # nodes that Kubernetes has given up, and when it did
        self._known_nodes: set[str] = set()
        self._has_looked = False  # whether nodes were read since leases were last read
        self._everybodys: tuple[float, list[Thing]] = (float("-inf"), [])  # valid until, and the Pods
        self._over: dict[str, Observation] = {}  # finished leases, from their records
        self._unasked: dict[str, float] = {}  # open leases that nobody asks about, and since when
        self._waiting: dict[str, float] = {}  # since when a lease has been waiting for the same thing
        self._pulled = 0
        self._swept = float("-inf")

    # -- nodes -------------------------------------------------------------------------------------------

    def nodes(self) -> Sequence[Node]:
        things, self._has_looked = self._see_nodes(), True
        pods = self._bound_pods()
        # If nothing is ours, do not ask for our objects: watching then needs only read rights.
        lives = (
            {record.name for record in self._records.all(is_open=True)}
            if self._described.mode == "run"
            else set()
        )
        taken = inventory.held(pod for pod in pods if not self._is_living(pod, lives))
        ours = inventory.held(pod for pod in pods if self._is_living(pod, lives))
        self._closed = {}
        self._places = {}
        found = []
        for node in things:
            name = node["metadata"]["name"]
            places = list(inventory.places(node, self._options))
            closed = inventory.why_closed(node, self._tolerations)
            if closed and places:
                self._closed[name] = say("kubernetes.node_closed", node=name, reason=verbatim(closed))
            self._places |= {own: place for own, place, _ in places}
            for own, place, gpus in () if closed else places:
                if said := why_strange(own, gpus):
                    self._closed[own] = said
                    continue
                offer = self._offer(
                    own,
                    gpu=inventory.gpu_type(node, place.resource, self._options),
                    gpus=gpus,
                    foreign=taken[place],
                    ours=ours[place],
                    rack=inventory.rack_of(node, self._options),
                )
                found.append(offer)
        return self._kept(found)

    def _see_nodes(self) -> list[Thing]:
        found = self._api.nodes()
        self._known_nodes = {node["metadata"]["name"] for node in found}
        silent = [node for node in found if inventory.is_silent(node)]
        self._gone = {node["metadata"]["name"]: inventory.silent_since_s(node) for node in silent}
        return [node for node in found if inventory.is_selected(node, self._options)]

    def _is_living(self, pod: Thing, lives: Collection[str]) -> bool:
        """Whether the Pod holds GPUs for a lease of ours that is not over."""
        labels = pod["metadata"].get("labels") or {}
        of = pod["metadata"]["name"].rpartition("-")[0]
        return (
            pod["metadata"].get("namespace") == self._api.namespace
            and labels.get(manifests.DEPLOYMENT) == self.deployment
            and of in lives
        )

    def _bound_pods(self) -> list[Thing]:
        until, pods = self._everybodys
        asked = self._clock()
        if asked >= until:
            pods = self._api.bound_pods()
            took_s = self._clock() - asked
            self._everybodys = (asked + REST * took_s if took_s > SLOW_LIST_S else asked, pods)
        return pods

    # -- start -------------------------------------------------------------------------------------------

    def start(self, starts: Sequence[Start]) -> Failures:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            return each_lease(self._start, {each.lease: each for each in starts}, pool.map)

    def _start(self, start: Start) -> None:
        found = self._records.find(start.lease)
        if found is not None and found.state != "ordered":
            return  # it was started or ended before
        self._check(start)
        secrets = manifests.secrets(
            self.deployment, start.lease, self._order_of(start), self._archive(start.job)
        )
        if found is None:
            speed = start.job.rate(self._gpu_at(start.parts[0][0])) if start.parts else 1.0
            facts = {
                "nodes": [node for node, _ in start.parts],
                "at_s": int(time.time()),
                "speed": speed * (start.job.spread_rate if len(start.parts) > 1 else 1.0),
                "secrets": len(secrets),
            }
            found = self._records.write(start.lease, "ordered", facts, None)
        if found is None:
            return  # another server was quicker
        pods = manifests.pods(
            self.deployment,
            start.lease,
            start.parts,
            self._places,
            self._options,
            namespace=self._api.namespace,
            sends=bool(self._store),
            secrets=len(secrets),
        )
        names = [pod["metadata"]["name"] for pod in pods]
        try:
            for thing in (*secrets, *pods):
                self._api.create(thing)
        except Rejected as error:
            self._give_up(found, names, error)
        released = self._records.write(start.lease, "released", found.facts, found)
        if released is not None:
            for name in names:
                self._records.release(name)
        elif (now := self._records.find(start.lease)) is not None and now.state in ("ending", "over"):
            # It was stopped in the meantime: what we created has never run.
            self._records.let_go(names, found.name, secrets=len(secrets))

    def _give_up(self, record: Record, pods: Sequence[str], error: Rejected) -> NoReturn:
        """The cluster rejects it because of a quota or a policy. Nothing of it has run or ever will."""
        seen = Observation(lease=record.lease, state="ended", cause="preempted_by_engine", problem=error.said)
        facts = {**record.facts, "over_s": int(time.time()), "ended": look.as_facts(seen)}
        if self._records.write(record.lease, "over", facts, record) is not None:
            self._records.let_go(pods, record.name, secrets=_secrets(record))
        raise CannotStart(error.said) from error

    def _check(self, start: Start) -> None:
        if start.job.gpu_milli < WHOLE_GPU:
            share = Number(start.job.gpu_milli / WHOLE_GPU, 2)
            raise CannotStart(say("kubernetes.no_shares", site=self.site, share=share))
        for node, gpus in start.parts:
            place = self._places.get(node)
            if place is None:
                raise WorldFailed(say("kubernetes.node_unknown", node=node))
            if len(gpus) > 1 and place.resource.startswith(inventory.MIG):
                raise CannotStart(say("kubernetes.one_slice", resource=place.resource, gpus=len(gpus)))

    def _order_of(self, start: Start) -> dict[str, Any]:
        job = start.job
        return {
            "lease": start.lease,
            "command": list(job.command),
            "folder": job.folder,
            "code": job.code,
            "env": {
                **self._kept_env(job),
                **task_env(job),
                **self._mark(start.lease),
                "PYTHONUNBUFFERED": "1",
                "BRIMFUL_JOB": job.job,
                "BRIMFUL_SUBMIT_DIR": job.folder,
            },
            "checkpoints": f"{self._options.folder}/{job.job}" if self._options.folder else "",
            "store": below(self._store, job.job) if self._store else "",
            "store_env": dict(self._store_env),
            "checkpoints_from": start.checkpoints_from or None,
            "kept_until_s": start.kept_until_s,
            "grace_s": self._options.grace_s,
        }

    def _archive(self, job: Job) -> bytes | None:
        found = super()._archive(job)
        if found is not None and len(found) > CODE_BYTES:
            size = Size(len(found))
            raise CannotStart(say("kubernetes.code_too_large", size=size, most=Size(CODE_BYTES)))
        return found

    def checkpoints(self, job: str) -> str:
        """None without a store or a shared folder: checkpoints then go with the Pod."""
        if self._store:
            return below(self._store, job)
        return f"{self._options.folder}/{job}" if self._options.folder else ""

    # -- stop --------------------------------------------------------------------------------------------

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            stop = lambda lease: self._stop(lease, grace_s=grace_s)  # noqa: E731
            return each_lease(stop, {lease: lease for lease in leases if lease not in self._over}, pool.map)

    def _stop(self, lease: str, *, grace_s: int) -> None:
        for _ in range(TRIES):
            found = self._records.find(lease)
            if found is None:
                # It has not started and never will: a late start finds this record.
                seen = Observation(lease=lease, state="ended", cause="stopped_by_us")
                facts = {"why": "stopped", "at_s": int(time.time()), "ended": look.as_facts(seen)}
                if self._records.write(lease, "over", facts, None) is not None:
                    self._over[lease] = seen
                    return
                continue
            if found.state == "over":
                return
            if found.state != "ending" or found.facts.get("why") != "stopped":
                found = self._records.write(lease, "ending", {**found.facts, "why": "stopped"}, found)
                if found is None:
                    continue
            self._records.end(self._records.ranks(found, self._records.pods()), grace_s=grace_s)
            return
        raise WorldFailed(say("kubernetes.contended", lease=lease))

    def warn(self, lease: str, *, until_s: int | None) -> None:
        """Kubelets deliver it to the ranks within about a minute."""
        found = self._records.find(lease)
        if found is None or found.state != "released":
            return
        told = "" if until_s is None else json.dumps({"deadline_s": until_s, "may_stay": True})
        for pod in (rank.pod for rank in self._records.ranks(found, self._records.pods()) if rank.pod):
            now = (pod["metadata"].get("annotations") or {}).get(manifests.NOTICE, "")
            if now != told:
                path = f"/metadata/annotations/{manifests.NOTICE.replace('/', '~1')}"
                self._api.patch_pod(pod["metadata"]["name"], [{"op": "add", "path": path, "value": told}])

    # -- observe -----------------------------------------------------------------------------------------

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        if not self._has_looked:
            self._see_nodes()
        self._has_looked = False
        # Pods first: a record exists before its Pods, so a Pod without an open lease is over.
        pods = self._records.pods()
        records = {record.lease: record for record in self._records.all(is_open=True)}
        seen = self._look_at_each(
            leases, lambda lease: self._look(lease, records.get(lease), pods), fatal="kubernetes_failed"
        )
        self._tidy(leases, records, pods)
        return seen

    def _look(self, lease: str, record: Record | None, pods: Sequence[Thing]) -> list[Observation]:
        if lease not in self._over and record is None:
            record = self._records.find(lease)
            if record is not None and record.state == "over":
                self._over[lease] = look.from_facts(record.facts["ended"])
        if lease in self._over:
            return [self._over[lease]]
        if record is None or record.state == "ordered":
            # Nothing of it has run. The loop repeats a start that was cut short.
            return [Observation(lease=lease, state="absent")]
        ranks = self._records.ranks(record, pods)
        lost = [rank.node for rank in ranks if not rank.is_over and self._is_gone(rank)]
        if all(rank.is_over or rank.node in lost for rank in ranks):
            return [self._close(record, ranks, lost)]
        if record.state == "released":
            self._records.release_late(ranks)
            why, reason = self._why_end(lease, ranks, lost)
            if why:
                facts = {**record.facts, "why": why, "reason": reason}
                record = self._records.write(lease, "ending", facts, record)
                if record is None:  # someone else was quicker: the next look will tell
                    return []
        if record.state == "ending":  # also if we died after writing it
            self._records.end(ranks, grace_s=self._options.grace_s)
        return self._going(record, ranks)

    def _is_gone(self, rank: Rank) -> bool:
        return bool(rank.node) and (rank.node in self._gone or rank.node not in self._known_nodes)

    def _why_end(self, lease: str, ranks: Sequence[Rank], lost: Sequence[str]) -> tuple[str, str]:
        """Why we must end a running lease: the code, and Kubernetes' words."""
        if lost:
            return "node_lost", ""
        has_failed = any(rank.has_failed for rank in ranks)
        if has_failed or any(rank.is_over and (rank.is_deleted or not rank.end) for rank in ranks):
            # A gang ends as a whole: the others would wait for the failed rank forever.
            return "rank_failed" if has_failed else "rank_gone", ""
        unbound = next((rank.unbound for rank in ranks if not rank.node and rank.unbound), "")
        stuck = next((rank.waits_for for rank in ranks if rank.node and rank.waits_for), "")
        if not unbound and not stuck:
            self._waiting.pop(lease, None)
            return "", ""
        waited_s = self._clock() - self._waiting.setdefault(lease, self._clock())
        if unbound and waited_s >= self._options.pending_s:
            return "handed_back", unbound
        if stuck and waited_s >= self._options.begin_s:
            return "stuck", stuck
        return "", ""

    def _going(self, record: Record, ranks: Sequence[Rank]) -> list[Observation]:
        lease, words = record.lease, ""
        begun = []
        for i, rank in enumerate(ranks):
            if rank.pod is not None and rank.has_begun and not self._spool.began(lease, i):
                self._spool.bring(lease, i, rank.pod["metadata"]["name"])
            begun.append(self._spool.began(lease, i))
            words = words or rank.unbound or rank.waits_for
        if not all(begun):
            said = say("kubernetes.waits", reason=verbatim(words)) if words else say("kubernetes.begins")
            return [Observation(lease=lease, state="waiting", problem=said)]
        started_s = min(each["at_s"] for each in begun)
        resumes_s, ahead_s = begun[0]["resumes_s"], self._skew(record, started_s)
        return [Observation(lease, "running", started_s=started_s, resumes_s=resumes_s, skew_s=ahead_s)]

    def _skew(self, record: Record, started_s: int) -> float:
        known = record.facts.get("skew_s")
        if known is None:
            known = look.skew_s(started_s, int(record.facts["at_s"]))
            self._records.write(record.lease, record.state, {**record.facts, "skew_s": known}, record)
        return float(known)

    def _close(self, record: Record, ranks: Sequence[Rank], lost: Sequence[str]) -> Observation:
        """Fetch its output, record how it ended, and only then delete its Pods."""
        for i, rank in enumerate(ranks):
            if rank.pod is not None and rank.node and rank.node not in lost:
                self._spool.bring(record.lease, i, rank.pod["metadata"]["name"])
        keeps = bool(self._store or self._options.folder)
        began = self._spool.began(record.lease, 0)
        lost_at = {node: self._gone.get(node) for node in lost}
        seen = look.ended(record, ranks, began=began, lost=lost_at, keeps=keeps)
        facts = {**record.facts, "over_s": int(time.time()), "ended": look.as_facts(seen)}
        if self._records.write(record.lease, "over", facts, record) is None:
            again = self._records.find(record.lease)  # a stop came in between, or another server closed it
            if again is not None and again.state == "over":
                seen = look.from_facts(again.facts["ended"])
            else:
                return Observation(lease=record.lease, state="waiting", problem=say("kubernetes.begins"))
        self._over[record.lease] = seen
        self._waiting.pop(record.lease, None)
        self._spool.forget(record.lease)
        if seen.cause == "preempted_by_engine":
            # Someone else is about to start there, or it would be refused there again.
            rest_s = HELD_S if seen.started_s is None else float(self._options.pending_s)
            self._held |= dict.fromkeys(record.facts["nodes"], self._clock() + rest_s)
        pods = [rank.pod["metadata"]["name"] for rank in ranks if rank.pod is not None]
        self._records.let_go(pods, record.name, secrets=_secrets(record))
        return seen

    # -- besides -----------------------------------------------------------------------------------------

    def _tidy(self, leases: Collection[str], records: Mapping[str, Record], pods: Sequence[Thing]) -> None:
        """Removes Pods of finished leases, leases that nobody knows, and old records."""
        names = {record.name for record in records.values()}
        for pod in pods:
            of = pod["metadata"]["name"].rpartition("-")[0]
            if of not in names and not (pod["metadata"].get("deletionTimestamp") and not _finalizers(pod)):
                self._records.let_go([pod["metadata"]["name"]], of, secrets=manifests.secrets_of(pod))
        now = self._clock()
        orphans = records.keys() - set(leases)
        self._unasked = {lease: self._unasked.get(lease, now) for lease in orphans}
        late = [lease for lease, since in self._unasked.items() if now - since >= ORPHAN_S]
        for lease in late:
            if records[lease].state == "ending":
                self._look(lease, records[lease], pods)
            else:
                self._stop(lease, grace_s=self._options.grace_s)
        self._pull_some(leases, records, pods)
        if now - self._swept >= SWEEP_S:
            self._swept = now
            self._records.sweep(before_s=int(time.time()) - KEPT_S)
        if len(self._over) > 2 * len(leases) + 1000:
            self._over = {lease: seen for lease, seen in self._over.items() if lease in leases}

    def _pull_some(
        self, leases: Collection[str], records: Mapping[str, Record], pods: Sequence[Thing]
    ) -> None:
        """Kubelets keep only the last 10 MiB or so of a log, so fetch the running ones in turns."""
        running = [
            (record.lease, i, rank.pod["metadata"]["name"])
            for record in records.values()
            if record.lease in leases
            for i, rank in enumerate(self._records.ranks(record, pods))
            if rank.pod is not None and rank.status.get("phase") == "Running" and not self._is_gone(rank)
        ]
        if running:
            first = self._pulled % len(running)
            for each in (running * 2)[first : first + min(PULLS, len(running))]:
                self._spool.bring(*each)
            self._pulled = first + PULLS

    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        if lease not in self._over:
            pod = manifests.pod_name(manifests.name_of(self.deployment, lease), rank)
            self._spool.bring(lease, rank, pod)
        return self._spool.read(lease, rank, offset=offset, limit=limit)

    def sample(self, lease: str) -> bytes | None:
        """As of the last fetch of its log."""
        return self._spool.sample(lease)

    def seen_jobs(self) -> Sequence[SeenJob]:
        return watched.jobs_of(self._api.everybodys_pods(), self._options)


def _secrets(record: Record) -> int:
    return int(record.facts.get("secrets", 1))


def _finalizers(pod: Thing) -> list[str]:
    return list(pod["metadata"].get("finalizers") or [])
