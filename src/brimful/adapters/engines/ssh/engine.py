"""Plain machines: each one's agent runs its part of every lease; what must outlive the machine is kept here.

A machine is listed in the sites file, or made by a provider and given back later. For each lease we keep
where it was sent and, once it is over, its output: the machine may be gone by then.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.code import CodeStore
from brimful.adapters.engines import logs
from brimful.adapters.engines.agent import Part, Seen
from brimful.adapters.engines.devices import catalog_name
from brimful.adapters.engines.gangs import KILL_S, Orphans, Ranks, ahead_s, look_at
from brimful.adapters.engines.lease_folders import LeaseFolders, each_lease, facts, failing
from brimful.adapters.engines.ssh import command as ssh
from brimful.adapters.engines.ssh.connection import Connection, Machine
from brimful.adapters.engines.ssh.wire import (
    STRANGE,
    error_in,
    greeting_in,
    part_out,
    piece_in,
    sample_in,
    seen_in,
)
from brimful.adapters.files import write_json
from brimful.adapters.objects.store import below
from brimful.adapters.sites import Site, Surroundings, options_of
from brimful.errors import BadInput, BrimfulError, Said, WorldFailed
from brimful.files import write_whole
from brimful.fleet.state import Node
from brimful.language import Quoted, say, verbatim
from brimful.language.record import as_record
from brimful.scheduler.cloud.providers import Host
from brimful.scheduler.ports import Failures, NodeLost, Observation, Start

ROUND_S = 4.0  # for the answers of all machines: the loop counts the site as lost after 15 s
STARTS_AT_ONCE = 32
KEPT_BYTES = 4 << 20  # of each rank's latest output, once it is over

Question = tuple[Any, ...]  # an agent method and its arguments


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """How machines are reached."""

    ssh: tuple[str, ...] = ()  # more ssh flags
    python: str = "python3"  # on the machines, 3.11 or later
    folder: str = "~/.brimful/ssh"  # on the machines: leases, logs, checkpoints
    lost_s: int = 300  # a machine that is silent for this long counts as lost, with everything on it


@dataclass(frozen=True, slots=True, kw_only=True)
class SshOptions(Reach):
    """Keys of a site with `engine = "ssh"`."""

    hosts: tuple[str, ...]  # [user@]host of each machine
    gpu: str  # type of their GPUs
    gpus: int  # per machine


class SshEngine(LeaseFolders):
    def __init__(
        self,
        root: Path,
        options: Reach,
        *,
        site: str,
        log_bytes: int,
        code: CodeStore | None = None,
        store: str = "",
        store_env: Mapping[str, str] | None = None,
        notices: str = "",
        microusd_per_gib: int = 0,
    ) -> None:
        super().__init__(
            root, site=site, log_bytes=log_bytes, code=code, runs_as=None, store=store, store_env=store_env
        )
        self._options, self._microusd_per_gib = options, microusd_per_gib
        self._node_folder = f"{options.folder}/{self.identity[:12]}"
        self._settings = {"log_bytes": log_bytes, "store": store, "notices": notices}
        self._hosts: Mapping[str, Host] | None = None  # None: not told yet
        self._machines: dict[str, tuple[Host, Machine]] = {}
        self._machines_lock = threading.RLock()  # leases start in parallel, and people read logs meanwhile
        self._last: list[Node] = []
        self._noticed: dict[str, Said] = {}  # machines that their cloud is taking back
        self._orphans = Orphans()
        self._has_looked = False  # since our start; until then a silent machine may run anything

    # -- machines ----------------------------------------------------------------------------------------

    def take(self, hosts: Mapping[str, Host]) -> None:
        """Sets the site's machines, by node. Called by the provider that makes them; never blocks."""
        self._hosts = hosts

    def _meet(self) -> dict[str, Machine]:
        """The current machines. A machine that is gone is not asked again."""
        hosts = self._hosts
        if hosts is None:
            raise WorldFailed(say("adapters.ssh_no_hosts_yet", site=self.site), code="ssh_unknown")
        with self._machines_lock:
            for name, (host, machine) in list(self._machines.items()):
                if name not in hosts or hosts[name].address != host.address:
                    del self._machines[name]
                    machine.close()
            for name, host in hosts.items():
                if name not in self._machines:
                    self._machines[name] = (host, Machine(self._connection(host)))
            return {name: machine for name, (_, machine) in self._machines.items()}

    def _connection(self, host: Host) -> Connection:
        hello = {"folder": self._node_folder, "node": asdict(host.node), "settings": self._settings}
        return Connection(host.address, self._options.python, self._options.ssh, hello)

    def _ask(self, asked: Mapping[str, Question]) -> tuple[dict[str, Any], dict[str, BrimfulError]]:
        """Each machine's answer by node, and why others do not answer."""
        with self._machines_lock:  # keeps them from being closed meanwhile
            machines = self._meet()
            futures = {name: machines[name].ask(*asked[name]) for name in asked if name in machines}
        until, answers = time.monotonic() + ROUND_S, dict[str, Any]()
        failed: dict[str, BrimfulError] = {}
        for name, future in futures.items():
            try:
                answers[name] = future.result(timeout=max(0.01, until - time.monotonic()))
            except BrimfulError as error:
                failed[name] = error
            except TimeoutError:
                future.cancel()
                failed[name] = WorldFailed(say("adapters.ssh_slow", node=name))
        return answers, failed

    def _is_lost(self, node: str) -> bool:
        found = self._machines.get(node)
        return found is None or time.monotonic() - found[1].heard > self._options.lost_s

    def _is_new(self, node: str) -> bool:
        """Whether silence is no sign of trouble: the machine was just made, or is being given up."""
        found = self._machines.get(node)
        never = found is not None and found[1].answers == 0
        return (never and self._has_looked) or self._is_lost(node)

    def nodes(self) -> Sequence[Node]:
        answers, failed = self._ask(dict.fromkeys(self._meet(), ("greet",)))
        if not answers and not all(map(self._is_new, failed)):
            raise next(iter(failed.values()))
        for name, said in answers.items():
            with contextlib.suppress(*STRANGE):
                self._notice(name, greeting_in(said)[2])
        hosts, self._has_looked = self._hosts or {}, True
        # A machine given back while it was being asked is no longer among the hosts.
        offered = [name for name in sorted(answers) if name in hosts and name not in self._noticed]
        found = [replace(hosts[name].node, microusd_per_gib=self._microusd_per_gib) for name in offered]
        if found != self._last:
            self._last = found
        return self._last

    def complaints(self) -> Mapping[str, Said]:
        silent = {
            name: failed.said
            for name, (_, machine) in list(self._machines.items())
            if (failed := machine.failed) is not None
        }
        return {**silent, **self._noticed}

    # -- leases ------------------------------------------------------------------------------------------

    def _placed(self, lease: str) -> tuple[str, ...] | None:
        """The nodes it was sent to, by rank; empty: stopped before that; None: unknown."""
        found = facts(self._folder(lease) / "placed.json")
        return None if not found else tuple(map(str, found.get("nodes", ())))

    def _place(self, lease: str, nodes: Sequence[str]) -> None:
        """Recorded before a machine hears of it: a lease is looked for where it may be, and nowhere else."""
        with failing("adapters.cannot_place", lease=lease, folder=self._folder(lease)):
            self._folder(lease).mkdir(exist_ok=True, mode=0o700)
            write_json(self._folder(lease) / "placed.json", {"nodes": list(nodes)})

    def start(self, starts: Sequence[Start]) -> Failures:
        """In parallel: a machine that is slow or not yet reachable does not block the others."""
        with ThreadPoolExecutor(STARTS_AT_ONCE, thread_name_prefix="ssh start") as threads:
            return each_lease(self._start, {each.lease: each for each in starts}, threads.map)

    def _start(self, start: Start) -> None:
        lease, names = start.lease, [name for name, _ in start.parts]
        if self._placed(lease) == ():
            return
        there = self._meet()
        if missing := [name for name in names if name not in there]:
            raise NodeLost(say("adapters.node_lost", node=", ".join(missing)))
        env, archive = self._kept_env(start.job), self._archive(start.job)
        self._place(lease, names)
        begun = self._all(dict.fromkeys(names, ("begun", [lease])))
        if any(begun.values()):
            if not all(begun.values()):  # a server left the gang half-started: it can never be complete
                self._give_up(names, lease, say("adapters.gang_incomplete"))
            return
        before_s = time.time()
        greeted = {}
        for name, said in self._all(dict.fromkeys(names, ("greet",))).items():
            try:
                greeted[name] = greeting_in(said)
            except STRANGE as error:
                raise self._strange(name, error) from error
        after_s = time.time()
        first, address, _ = greeted[names[0]]
        parts = {
            name: Part(
                start._replace(parts=((name, gpus),)),
                rank,
                len(names),
                tuple(gpus),
                (address, first.port),
                env,
                archive,
                self._store_env,
                ahead_s(greeted[name][0].at_s, before_s, after_s),
            )
            for rank, (name, gpus) in enumerate(start.parts)
        }
        answers = self._all({name: ("start", part_out(part)) for name, part in parts.items()})
        failed = [self._error(name, said) for name, said in answers.items() if said is not None]
        if len(failed) == len(names):
            raise failed[0]
        if failed:
            self._give_up(names, lease, failed[0].said)
            raise WorldFailed(failed[0].said)  # not certain: the others have begun

    def _give_up(self, names: Sequence[str], lease: str, why: Said) -> None:
        self._ask(dict.fromkeys(names, ("give_up", lease, KILL_S, as_record(why))))

    def _all(self, asked: Mapping[str, Question]) -> dict[str, Any]:
        answers, failed = self._ask(asked)
        for error in failed.values():
            raise WorldFailed(error.said)
        return answers

    def stop(self, leases: Sequence[str], *, grace_s: int) -> Failures:
        there: dict[str, list[str]] = {}
        for lease in leases:
            placed = self._placed(lease)
            if placed is None:
                self._place(lease, ())  # never sent anywhere, and never will be
            for name in placed or ():
                there.setdefault(name, []).append(lease)
        answers, silent = self._ask({name: ("stop", those, grace_s) for name, those in there.items()})
        failed: dict[str, BrimfulError] = {lease: silent[name] for name in silent for lease in there[name]}
        for name, answer in answers.items():
            told = answer if isinstance(answer, dict) else {}
            failed |= {lease: self._error(name, told[lease]) for lease in told if lease in leases}
        return failed

    def _error(self, node: str, said: Any) -> BrimfulError:  # noqa: ANN401 - what the machine says
        try:
            return error_in(said)
        except STRANGE as error:
            return self._strange(node, error)

    def warn(self, lease: str, *, until_s: int | None) -> None:
        placed = self._placed(lease)
        if placed is not None:
            self._all(dict.fromkeys(placed, ("warn", lease, until_s)))

    def observe(self, leases: Collection[str]) -> Sequence[Observation]:
        placed = {lease: self._placed(lease) for lease in leases}
        there: dict[str, list[str]] = {name: [] for name in self._meet()}
        for lease, where in placed.items():
            for name in where or ():
                there.setdefault(name, []).append(lease)
        answers, failed = self._ask({name: ("observe", those) for name, those in there.items()})
        if leases and not answers and not all(map(self._is_new, failed)):
            raise next(iter(failed.values()))
        parts: dict[str, dict[int, tuple[str, Seen]]] = {lease: {} for lease in leases}
        for name, answer in answers.items():
            try:
                seen, living = answer
                for each in (seen_in(said, there[name]) for said in seen):
                    parts[each.observation.lease][each.rank] = (name, each)
                self._end_orphans(name, {str(each) for each in living} - set(leases))
            except STRANGE as error:
                failed[name] = self._strange(name, error)
        looks = (self._look(lease, where or (), parts[lease], failed) for lease, where in placed.items())
        return [each for each in looks if each is not None]

    def _strange(self, node: str, error: BaseException) -> WorldFailed:
        return WorldFailed(say("adapters.ssh_strange", node=node, why=verbatim(str(error)[:300])))

    def _notice(self, node: str, said: Said | None) -> None:
        if said is None:
            self._noticed.pop(node, None)
        else:
            self._noticed[node] = said

    def _look(
        self, lease: str, nodes: Sequence[str], those: Ranks, failed: Collection[str]
    ) -> Observation | None:
        gone = [name for name in nodes if name not in self._machines or self._is_lost(name)]
        if any(name in failed and name not in gone for name in nodes):
            return None  # it may have the rest of a gang
        told = look_at(lease, those, gone, lambda names, grace_s: self._stop_on(names, lease, grace_s))
        if told is None or told.state != "ended":
            return told
        if gone and told.ended_s is None:
            # Nobody pays for the time after the last sign of life.
            known = [found for name in gone if (found := self._machines.get(name)) is not None]
            heard = [machine.heard_s for _, machine in known]
            told = replace(told, ended_s=int(max(heard)) if heard else None)
        self._keep_logs(lease, those)
        return told

    def _stop_on(self, names: Sequence[str], lease: str, grace_s: int) -> None:
        self._ask(dict.fromkeys(names, ("stop", [lease], grace_s)))

    def _end_orphans(self, node: str, orphans: Collection[str]) -> None:
        if late := self._orphans.late(node, orphans):
            self._ask({node: ("stop", late, KILL_S)})

    def _keep_logs(self, lease: str, those: Ranks) -> None:
        """Once: its machine may be given back as soon as it is over."""
        for rank, (name, _) in those.items():
            path = self._folder(lease) / logs.name_of(rank)
            if not path.exists():
                answers, _ = self._ask({name: ("log", lease, -KEPT_BYTES, KEPT_BYTES)})
                with contextlib.suppress(OSError, *STRANGE):
                    piece = piece_in(answers[name], offset=-KEPT_BYTES, limit=KEPT_BYTES)
                    write_whole(path, piece.data, mode=0o600)

    def log(self, lease: str, *, rank: int = 0, offset: int = 0, limit: int = 1 << 20) -> LogPiece:
        path, placed = self._folder(lease) / logs.name_of(rank), self._placed(lease)
        if path.exists() or placed is None or rank >= len(placed):
            with failing("adapters.cannot_read_log", lease=lease):
                return logs.read(path, offset=offset, limit=limit)
        found = self._all({placed[rank]: ("log", lease, offset, limit)})
        try:
            return piece_in(found[placed[rank]], offset=offset, limit=limit)
        except STRANGE as error:
            raise WorldFailed(say("adapters.ray_no_log", lease=lease, site=self.site)) from error

    def sample(self, lease: str) -> bytes | None:
        placed = self._placed(lease)
        if not placed:
            return None
        answers, _ = self._ask({placed[0]: ("sample", lease)})
        return sample_in(answers.get(placed[0]))

    def checkpoints(self, job: str) -> str:
        """Without a store, only sites that share the machines' folder can fetch it."""
        return below(self._store, job) if self._store else f"{self._node_folder}/.checkpoints/{job}"

    def close(self) -> None:
        """Ends the connections; jobs keep running."""
        for _, machine in self._machines.values():
            machine.close()
        self._machines = {}


def ssh_site(site: Site, given: Surroundings) -> SshEngine:
    """Machines listed in the sites file."""
    options = options_of(site, SshOptions)
    for key, is_wrong in (
        ("hosts", not options.hosts or not all(map(ssh.ADDRESS.fullmatch, options.hosts))),
        ("gpus", not 1 <= options.gpus <= 1024),
        ("gpu", not options.gpu),
        ("lost_s", options.lost_s < 10),
    ):
        if is_wrong:
            value = Quoted(str(getattr(options, key))[:60])
            raise BadInput(say("sites.bad_value", site=site.site, key=key, value=value))
    made = ssh_engine(site, given, options)
    node = Node(
        site=site.site,
        node="",
        gpu=catalog_name(options.gpu),
        gpus=options.gpus,
        microusd_per_gpu_hour=given.price_of(site),
        declared=True,
        tier=site.tier,
        owner=site.owner,
    )
    names = [f"{site.site}-{i}" for i in range(len(options.hosts))]
    made.take(
        {
            name: Host(replace(node, node=name), address)
            for name, address in zip(names, options.hosts, strict=True)
        }
    )
    return made


def ssh_engine(site: Site, given: Surroundings, options: Reach) -> SshEngine:
    return SshEngine(
        given.folder,
        options,
        site=site.site,
        log_bytes=given.log_bytes,
        code=given.code,
        store=site.checkpoints,
        store_env=given.store_env_of(site),
        notices=site.notices,
        microusd_per_gib=site.microusd_per_gib,
    )
