"""The process that talks to Ray: `python -m brimful.adapters.engines.ray.bridge FD`.

A Ray driver cannot live in the server: it has many threads, and a dying head may end the process. The engine
(engine.py) talks to this process over a pipe and starts another one if it does not answer.
"""

from __future__ import annotations

import hashlib
import os
import socket
import sys
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from brimful import __version__
from brimful.adapters.capabilities import LogPiece
from brimful.adapters.engines.agent import Part, Seen
from brimful.adapters.engines.devices import why_strange
from brimful.adapters.engines.gangs import (
    KILL_S,
    Orphans,
    Ranks,
    ahead_s,
    look_at,
    ranks_of,
)
from brimful.adapters.engines.ray.agent import RayAgent
from brimful.adapters.engines.ray.raylets import Raylets
from brimful.adapters.engines.watch import SENDING
from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.fleet.events import Cause, Parts
from brimful.fleet.state import Node
from brimful.language import Quoted, say, verbatim
from brimful.language.failures import needs_package
from brimful.language.record import as_record
from brimful.scheduler.ports import Observation, Start

ANSWER_S = 10.0  # for an actor's answer
LEASE_S = 0.05  # added for each lease that it has to read or write
PLACED_S = 5.0  # for a placement group whose GPUs others hold
AT_ONCE_S = 1.0  # for the groups of one order, before the next look: most are placed by then
BUSY_S = 30.0  # for a busy Ray to place a group, and for a busy agent before a lease is started there
HEAD_S = 10  # a driver that cannot reach the head for this long gives up; Ray's default is a minute
REJOIN_S = 60.0  # how long nodes have to join a new head
IDLE_S = 3600.0  # an agent that gets no request for this long exits


class Settings(NamedTuple):
    """The first message to the bridge."""

    address: str
    namespace: str  # of this deployment at this site
    folder: str  # on each node
    node: Node  # template for the cluster's nodes: site, price, tier
    engine: Mapping[str, Any]  # for the engine on each node
    node_ip: str = ""
    idle_s: float = IDLE_S


class Held(NamedTuple):
    """The placement group of a lease."""

    group: Any
    lease: str
    nodes: tuple[str, ...]


class Waiting(NamedTuple):
    """A lease that Ray has not given GPUs yet."""

    start: Start
    given: Mapping[str, Any]  # the fields of a Part that are the same for all ranks
    group: Any  # None: one of its nodes is gone
    since: float
    others: str = ""  # a node where others hold what it needs


class Greeted(NamedTuple):
    port: int  # for rank 0 to listen on
    skew_s: float  # how far ahead the node's clock is


class Bridge:
    def __init__(self, settings: Settings) -> None:
        os.environ.setdefault("RAY_gcs_rpc_server_reconnect_timeout_s", str(HEAD_S))
        with needs_package("adapters.no_ray", python=sys.executable):
            import ray

        _knock(settings.address)
        more = {"_node_ip_address": settings.node_ip} if settings.node_ip else {}
        ray.init(
            address=settings.address,
            namespace=settings.namespace,
            log_to_driver=False,
            configure_logging=False,
            **more,
        )
        self._ray: Any = ray
        self._set = settings
        self._agents: dict[str, tuple[str, Any]] = {}  # by node; its id changes when it comes back
        self._raylets = Raylets()
        self._orphans = Orphans()
        self._away_since: dict[str, float] = {}
        self._noticed: dict[str, Said] = {}  # nodes that their cloud is taking back
        self._waiting: dict[str, Waiting] = {}
        self._never: dict[str, tuple[Waiting, Cause]] = {}  # leases that will never start, and why
        self._failed: dict[str, BrimfulError] = {}  # from starts carried out later

    # -- nodes -------------------------------------------------------------------------------------------

    def _alive(self) -> dict[str, dict[str, Any]]:
        """Living nodes by name. Names are stable; ids are not: a restarted node gets a new one.

        A restarted node is listed twice until somebody notices that the first is dead: the later one counts.
        If two machines share a name, nobody could say which one has a lease, so neither is reported.
        """
        found: dict[str, dict[str, Any]] = {}
        listed = [each for each in self._ray.nodes() if each["Alive"] and each["Resources"].get("GPU")]
        dead = self._raylets.dead(listed)
        for each in listed:
            if each["NodeID"] not in dead:
                name = each["NodeName"]
                if name in found and _machine(found[name]) != _machine(each):
                    raise WorldFailed(say("adapters.ray_name_twice", node=Quoted(name[:60])))
                found[name] = each
        return found

    def _draining(self, alive: Mapping[str, dict[str, Any]]) -> dict[str, int]:
        """Nodes that Ray is draining, by name, and the deadline in ms (0: none given)."""
        from ray._private.state import state

        found: Mapping[str, int] = state.get_draining_nodes()
        return {name: found[each["NodeID"]] for name, each in alive.items() if each["NodeID"] in found}

    def nodes(self) -> tuple[list[Node], dict[str, Said]]:
        """What is offered, and, by name, nodes that are up but closed, with the reason."""
        alive = self._alive()
        others = self._others(alive)
        closed = {name: said for name, said in self._noticed.items() if name in alive}
        closed |= {name: say("adapters.ray_node_drained", node=name) for name in self._draining(alive)}
        made = []
        for name, each in sorted(alive.items()):
            gpus = int(each["Resources"]["GPU"])
            if said := why_strange(name, gpus):
                closed[name] = said
            if name in closed:
                continue
            kind = (
                self._set.node.gpu
                or str(each.get("Labels", {}).get("ray.io/accelerator-type", "gpu")).lower()[:64]
            )
            taken = tuple(range(min(gpus, max(0, round(others[name])))))
            made.append(replace(self._set.node, node=name, gpu=kind, gpus=gpus, taken=taken))
        return made, closed

    def _others(self, alive: Mapping[str, dict[str, Any]]) -> dict[str, float]:
        """By node, how many GPUs others hold: those in use that Ray does not set aside for our leases.

        A removed group is no longer listed as ours at once, but its GPUs are free only when its workers are
        gone. Until then the node's total has them under the group's name.
        """
        from ray._private.state import available_resources_per_node, total_resources_per_node

        free, total = available_resources_per_node(), total_resources_per_node()
        ours = {f"GPU_group_{each['placement_group_id']}" for _, each in self._groups()}
        found = {}
        for name, each in alive.items():
            node_id = each["NodeID"]
            held = sum(gpus for kind, gpus in total.get(node_id, {}).items() if kind in ours)
            found[name] = each["Resources"]["GPU"] - free.get(node_id, {}).get("GPU", 0) - held
        return found

    def _held(self) -> dict[str, Held]:
        """By lease. The group's name says whose it is: a new server finds nothing else."""
        from ray.util.placement_group import get_placement_group

        found = {}
        for lease, each in self._groups():
            if each["state"] != "REMOVED":
                nodes = str(each["name"]).rpartition("|")[2]
                found[lease] = Held(get_placement_group(each["name"]), lease, tuple(nodes.split(",")))
        return found

    def _created(self) -> set[str]:
        """Leases whose GPUs are placed. On a busy head a wait with a short timeout would say no for all."""
        return {lease for lease, each in self._groups() if each["state"] == "CREATED"}

    def _groups(self) -> Iterator[tuple[str, dict[str, Any]]]:
        """Our leases' groups, from Ray's own table."""
        for each in self._ray.util.placement_group_table().values():
            mark, _, rest = str(each["name"]).partition("|")
            if mark == self._set.namespace:
                yield rest.partition("|")[0], each

    def _agent(self, name: str, alive: Mapping[str, dict[str, Any]]) -> Any:  # noqa: ANN401 - Ray's own
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node_id = alive[name]["NodeID"]
        known = self._agents.get(name)
        if known is None or known[0] != node_id:
            told = (dict(self._set.engine), self._set.idle_s)
            # One that lives on keeps its settings and its code: others need another agent.
            settings = hashlib.sha256(f"{__version__} {self._set.folder} {told}".encode()).hexdigest()[:8]
            made = self._ray.remote(RayAgent).options(
                name=f"agent-{name}-{node_id[:12]}-{settings}",
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            node = replace(self._set.node, node=name)
            self._agents[name] = (node_id, made.remote(self._set.folder, node, *told))
        return self._agents[name][1]

    def _ask(
        self,
        names: Collection[str],
        method: str,
        *arguments: object,
        leases: int = 0,
        within_s: float = ANSWER_S,
    ) -> dict[str, Any]:
        """The answers of agents that answered, by node. `leases`: how many each is asked about."""
        alive = self._alive()
        asked = {n: getattr(self._agent(n, alive), method).remote(*arguments) for n in names if n in alive}
        until, answers = time.monotonic() + within_s + LEASE_S * leases, {}
        for name, each in asked.items():
            try:
                answers[name] = self._ray.get(each, timeout=max(0.1, until - time.monotonic()))
            except self._ray.exceptions.RayError:
                self._agents.pop(name, None)  # look it up again
        return answers

    # -- leases ------------------------------------------------------------------------------------------

    def start(
        self, starts: Sequence[tuple[Start, Mapping[str, str], bytes | None]], store_env: Mapping[str, str]
    ) -> dict[str, BrimfulError]:
        asked = {each[0].lease for each in starts}
        begun = self._begun([start for start, *_ in starts]) | self._never.keys()
        held = self._held()
        for start, env, archive in starts:  # request all first: they are placed in parallel
            lease = start.lease
            if lease not in begun and lease not in self._waiting:
                group = held[lease].group if lease in held else self._place(lease, start.parts)
                given = {"env": env, "archive": archive, "store_env": store_env}
                self._waiting[lease] = Waiting(start, given, group, time.monotonic())
        self._begin_placed(within_s=AT_ONCE_S)
        return {lease: self._failed.pop(lease) for lease in asked & self._failed.keys()}

    def _begin_placed(self, *, within_s: float) -> None:
        """Start those whose GPUs are placed; hand back those that have waited too long."""
        if not self._waiting:
            return
        until = time.monotonic() + within_s
        for each in self._waiting.values():
            if each.group is not None and (left_s := until - time.monotonic()) > 0:
                each.group.wait(left_s)
        placed, alive = self._created(), self._alive()
        others, late = self._others(alive), []
        for lease, last in list(self._waiting.items()):
            each = last._replace(others=_held_by_others(last.start, alive, others))
            self._waiting[lease] = each
            try:
                if lease in placed:
                    greeted = self._greet(each.start)
                    if isinstance(greeted, BrimfulError) and time.monotonic() - each.since < BUSY_S:
                        continue  # nothing of it has started, and an agent may be busy
                    del self._waiting[lease]
                    error = self._start(each, greeted) if isinstance(greeted, dict) else greeted
                    if error is not None:
                        self._failed[lease] = error
                elif each.group is None or (
                    time.monotonic() - each.since > (PLACED_S if each.others else BUSY_S)
                    and lease not in self._created()
                ):
                    late.append(lease)
            except self._ray.exceptions.RayError as foreign:
                self._waiting.pop(lease, None)
                self._failed[lease] = WorldFailed(verbatim(str(foreign)[:300]))
        self._let_go(late, "preempted_by_engine")

    def _let_go(self, leases: Collection[str], cause: Cause) -> None:
        """Give up those that have not begun. One that an agent is silent about may run: it keeps its GPUs."""
        if not leases:
            return
        alive = self._alive()
        nodes = {lease: [n for n, _ in self._waiting[lease].start.parts if n in alive] for lease in leases}
        asked = set().union(*nodes.values())
        answers = self._ask(asked, "begun", list(leases), leases=len(leases), within_s=AT_ONCE_S)
        for lease, names in nodes.items():
            if any(lease in answers.get(name, ()) for name in names):
                del self._waiting[lease]
            elif answers.keys() >= set(names):
                each = self._waiting.pop(lease)
                self._never[lease] = (each, cause)
                if each.group is not None:
                    self._ray.util.remove_placement_group(each.group)

    def _begun(self, starts: Sequence[Start]) -> set[str]:
        """Leases that were started before.

        A gang that lacks a rank is given up: it can never be complete. A silent node may have it.
        """
        asked = [start.lease for start in starts]
        answers = self._ask(list(self._alive()), "begun", asked, leases=len(asked))
        begun = {lease for found in answers.values() for lease in found}
        for start in starts:
            if start.lease in begun and any(start.lease not in answers.get(n, asked) for n, _ in start.parts):
                self._give_up(start, say("adapters.gang_incomplete"))
        return begun

    def _give_up(self, start: Start, why: Said) -> None:
        names = [name for name, _ in start.parts]
        self._ask(names, "give_up", start.lease, KILL_S, as_record(why))

    def _place(self, lease: str, parts: Parts) -> Any:  # noqa: ANN401
        alive = self._alive()
        if any(name not in alive for name, _ in parts):
            return None
        return self._ray.util.placement_group(
            [{"GPU": len(gpus)} for _, gpus in parts],
            bundle_label_selector=[{"ray.io/node-id": alive[name]["NodeID"]} for name, _ in parts],
            name=f"{self._set.namespace}|{lease}|{','.join(name for name, _ in parts)}",
            lifetime="detached",
        )

    def _greet(self, start: Start) -> dict[str, Greeted] | BrimfulError | None:
        """None: an agent that did not answer before says that it has begun."""
        names, before_s = [name for name, _ in start.parts], time.time()
        answers = self._ask(names, "greet")
        after_s = time.time()
        begun = self._ask(names, "begun", [start.lease])
        if missing := [name for name in names if name not in answers or name not in begun]:
            return WorldFailed(say("adapters.ray_no_agent", node=missing[0]))
        if any(begun.values()):
            return None
        skews = {name: ahead_s(each.at_s, before_s, after_s) for name, each in answers.items()}
        return {name: Greeted(each.port, skews[name]) for name, each in answers.items()}

    def _start(self, waiting: Waiting, greeted: Mapping[str, Greeted]) -> BrimfulError | None:
        start = waiting.start
        names = [name for name, _ in start.parts]
        devices, alive = self._devices(start.parts, waiting.group), self._alive()
        master = (alive[names[0]]["NodeManagerAddress"], greeted[names[0]].port)
        asked = {}
        for rank, (name, gpus) in enumerate(start.parts):
            part = Part(
                start._replace(parts=((name, tuple(range(len(gpus)))),)),
                rank,
                len(names),
                devices[rank],
                master,
                skew_s=greeted[name].skew_s,
                **waiting.given,
            )
            asked[name] = self._agent(name, alive).start.remote(part)
        failed = [
            error for error in self._ray.get(list(asked.values()), timeout=ANSWER_S) if error is not None
        ]
        if not failed or len(failed) == len(names):
            return failed[0] if failed else None
        self._give_up(start, failed[0].said)
        return WorldFailed(failed[0].said)  # not certain: the others have begun

    def _devices(self, parts: Parts, group: Any) -> list[tuple[int, ...]]:  # noqa: ANN401
        """Which GPUs each bundle holds: a task inside it finds out."""
        from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

        asked = [
            self._ray.remote(_gpus)
            .options(
                num_gpus=len(gpus),
                num_cpus=0,
                scheduling_strategy=PlacementGroupSchedulingStrategy(group, placement_group_bundle_index=i),
            )
            .remote()
            for i, (_, gpus) in enumerate(parts)
        ]
        return [tuple(map(int, each)) for each in self._ray.get(asked, timeout=6 * ANSWER_S)]

    def stop(self, leases: Sequence[str], grace_s: int) -> dict[str, BrimfulError]:
        failed: dict[str, BrimfulError] = {}
        waiting = self._waiting.keys() & set(leases)
        self._let_go(waiting, "stopped_by_us")
        for lease in waiting & self._waiting.keys():  # it may have begun: its agents say what becomes of it
            del self._waiting[lease]
        told = self._ask(list(self._alive()), "stop", list(leases), grace_s, leases=len(leases))
        for answer in told.values():
            failed |= answer
        return failed

    def warn(self, lease: str, until_s: int | None) -> None:
        self._ask(list(self._alive()), "warn", lease, until_s)

    def observe(self, leases: Mapping[str, Sequence[str]]) -> list[Observation]:
        """`leases`: with the nodes that they were sent to."""
        self._begin_placed(within_s=0)
        alive, held = self._alive(), self._held()
        self._leave_drained(alive, held)
        answers = self._ask(list(alive), "observe", list(leases), leases=len(leases))
        parts: dict[str, dict[int, tuple[str, Seen]]] = {lease: {} for lease in leases}
        self._noticed = {name: said for name, (*_, said) in answers.items() if said is not None}
        for name, (seen, living, _) in answers.items():
            for each in seen:
                parts[each.observation.lease][each.rank] = (name, each)
            if late := self._orphans.late(name, set(living) - set(leases)):
                self._ask([name], "stop", late, KILL_S)
        all_answered = answers.keys() == alive.keys()
        self._never = {lease: each for lease, each in self._never.items() if lease in parts}
        unplaced = [
            *(_not_placed(each) for lease, each in self._waiting.items() if lease in parts),
            *(_not_placed(each, cause) for each, cause in self._never.values()),
        ]
        for each in unplaced:
            del parts[each.lease]
        away = self._away(leases, held, alive)
        looks = (
            self._look_at(lease, those, held.get(lease), [n for n in leases[lease] if n not in alive])
            for lease, those in parts.items()
            if lease not in away
        )
        found = [each for each in looks if each is not None]
        if all_answered:
            self._reserve_again(parts, held)
            living = {lease for _, those, _ in answers.values() for lease in those}
            for lease in held.keys() - set(leases) - living:  # it ended while we were away
                self._ray.util.remove_placement_group(held[lease].group)
            return [*found, *unplaced]
        # A node that did not answer may have the rest of a gang, or the lease that we cannot find.
        whole = {lease for lease, those in parts.items() if those and len(those) == ranks_of(those)}
        return [*(each for each in found if each.lease in whole), *unplaced]

    def _away(
        self, leases: Mapping[str, Sequence[str]], held: Mapping[str, Held], alive: Collection[str]
    ) -> set[str]:
        """Leases that nothing can be said about yet: a head that lost its memory is back before its nodes."""
        missing = {lease for lease, names in leases.items() if not set(names) <= set(alive)}
        away, now = missing - held.keys(), time.monotonic()
        self._away_since = {lease: self._away_since.get(lease, now) for lease in away}
        return {lease for lease, since in self._away_since.items() if now - since < REJOIN_S}

    def _leave_drained(self, alive: Mapping[str, dict[str, Any]], held: Mapping[str, Held]) -> None:
        """Leases on nodes that Ray drains at a known time save their work and continue elsewhere."""
        ends_s = {name: ms / 1000 for name, ms in self._draining(alive).items() if ms}
        for each in held.values():
            if going := [name for name in each.nodes if name in ends_s]:
                left_s = min(ends_s[name] for name in going) - time.time()
                # One share of the time to save, one to send what was saved.
                why = as_record(say("adapters.ray_drained", node=going[0]))
                self._ask(each.nodes, "leave", each.lease, max(KILL_S, int(left_s / SENDING)), why)

    def _reserve_again(self, parts: Mapping[str, Ranks], held: Mapping[str, Held]) -> None:
        """A head that lost its memory has forgotten who holds which GPUs, while the jobs kept running.

        Ray chooses GPUs by its own numbers, lowest first, as it did originally.
        """
        lost = [those for lease, those in parts.items() if lease not in held and _all_run(those)]
        for those in sorted(lost, key=lambda those: min(each.devices for _, each in those.values())):
            ranks = [those[rank] for rank in sorted(those)]
            lease = ranks[0][1].observation.lease
            wanted = tuple((name, tuple(range(len(each.devices)))) for name, each in ranks)
            self._place(lease, wanted)

    def _look_at(
        self, lease: str, those: Ranks, held: Held | None, lost: Sequence[str]
    ) -> Observation | None:
        one = look_at(lease, those, lost, lambda names, grace_s: self._ask(names, "stop", [lease], grace_s))
        if one is not None and one.state == "ended" and held is not None:
            self._ray.util.remove_placement_group(held.group)
        return one

    def log(self, lease: str, rank: int, offset: int, limit: int) -> LogPiece | None:
        if lease in self._waiting:
            self._begin_placed(within_s=0)
            return LogPiece(0, b"", 0)
        node = self._node_of(lease, rank)
        return None if node is None else self._ask([node], "log", lease, offset, limit).get(node)

    def sample(self, lease: str) -> bytes | None:
        node = self._node_of(lease, rank=0)
        return None if node is None else self._ask([node], "sample", lease).get(node)

    def _node_of(self, lease: str, rank: int) -> str | None:
        """An agent idle for long may have just exited: ask a new one."""
        for _ in range(2):
            alive = list(self._alive())
            ranks = self._ask(alive, "rank_of", lease)
            node = next((name for name, found in ranks.items() if found == rank), None)
            if node is not None or len(ranks) == len(alive):
                return node
        return None


def _not_placed(waiting: Waiting, cause: Cause | None = None) -> Observation:
    """`cause`: why it will never start."""
    start = waiting.start
    nodes = waiting.others or ", ".join(name for name, _ in start.parts)
    code = "ray_not_placed" if waiting.others else "ray_places" if cause is None else "ray_too_slow"
    said = say(f"adapters.{code}", lease=start.lease, nodes=nodes)
    return Observation(lease=start.lease, state="ended" if cause else "waiting", problem=said, cause=cause)


def _held_by_others(start: Start, alive: Mapping[str, Any], others: Mapping[str, float]) -> str:
    """The first node where others leave too few GPUs for it; empty: none."""
    has = {name: each["Resources"]["GPU"] for name, each in alive.items()}
    wanted = ((name, len(gpus)) for name, gpus in start.parts if name in has)
    return next((name for name, gpus in wanted if others[name] + gpus > has[name]), "")


def _knock(address: str) -> None:
    """OSError if nobody listens there: a driver would say nothing, and end its process after a while."""
    host, _, port = address.rpartition(":")
    if host and port.isdecimal() and "//" not in host:
        socket.create_connection((host.strip("[]"), int(port)), timeout=HEAD_S).close()


def _gpus() -> list[Any]:
    import ray

    return list(ray.get_gpu_ids())


def _all_run(those: Ranks) -> bool:
    is_whole = len(those) == ranks_of(those) and all(each.devices for _, each in those.values())
    return bool(those) and is_whole and all(each.observation.state == "running" for _, each in those.values())


def _machine(node: Mapping[str, Any]) -> object:
    return node.get("NodeManagerAddress")


def main(handle: int) -> int:
    pipe = Connection(handle)
    try:
        bridge = Bridge(pipe.recv())
        pipe.send(("ok", None))
    except BrimfulError as error:
        pipe.send(("failed", error.said))
        return 1
    except Exception as error:  # noqa: BLE001 - reported, whatever Ray raises
        pipe.send(("failed", f"{type(error).__name__}: {error}"[:500]))
        return 1
    while True:
        try:
            method, arguments = pipe.recv()
        except EOFError:
            return 0
        try:
            pipe.send(("ok", getattr(bridge, method)(*arguments)))
        except BrimfulError as error:
            pipe.send(("failed", error.said))
        except Exception as error:  # noqa: BLE001
            pipe.send(("failed", f"{type(error).__name__}: {error}"[:500]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
