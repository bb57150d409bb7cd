"""The process that speaks to Ray: `python -m brimful.adapters.engines.ray.bridge FD`.

A driver of Ray cannot live in the server: a head that dies may end the process, and its threads are many. The
engine (engine.py) asks this one over a pipe, and starts another when it does not answer.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from multiprocessing.connection import Connection
from typing import Any, NamedTuple

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.engines.ray.agent import NodeAgent, Part, Seen
from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.events import Parts
from brimful.fleet.state import Node
from brimful.language import say, verbatim
from brimful.scheduler.ports import CannotStart, Observation, Start

ANSWER_S = 10.0  # for an actor's answer
PLACED_S = 5.0  # for a placement group: then others have the GPUs
ORPHAN_S = 10.0  # a lease that lives and is not asked for so long is nobody's
GRACE_S = 30  # of a gang's other ranks, when one has failed
KILL_S = 1  # grace of an orphan, and of a gang whose node was lost


class Settings(NamedTuple):
    """What the bridge is told first."""

    address: str
    namespace: str  # of this deployment at this site
    folder: str  # on each node
    node: Node  # like which the cluster's are: site, price, tier
    engine: Mapping[str, Any]  # for the engine on each node
    node_ip: str = ""


class Held(NamedTuple):
    """The placement group of a lease."""

    group: Any
    lease: str
    nodes: tuple[str, ...]
    state: str


class Bridge:
    def __init__(self, settings: Settings) -> None:
        import ray

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
        self._agents: dict[
            str, tuple[str, Any]
        ] = {}  # by node: its id, which a node that comes back has anew
        self._living_since: dict[str, float] = {}  # orphans, since when

    # -- nodes -------------------------------------------------------------------------------------------

    def _alive(self) -> dict[str, dict[str, Any]]:
        """By name. The names are stable; ids are those of one life of a node."""
        found = (each for each in self._ray.nodes() if each["Alive"] and each["Resources"].get("GPU"))
        return {each["NodeName"]: each for each in found}

    def nodes(self) -> list[Node]:
        from ray._private.state import available_resources_per_node

        free = available_resources_per_node()
        ours: dict[str, float] = {}
        for held in self._held().values():
            for node, bundle in zip(held.nodes, self._bundles(held), strict=False):
                ours[node] = ours.get(node, 0) + bundle
        made = []
        for name, each in sorted(self._alive().items()):
            gpus = int(each["Resources"]["GPU"])
            used = gpus - free.get(each["NodeID"], {}).get("GPU", 0) - ours.get(name, 0)
            kind = (
                self._set.node.gpu
                or str(each.get("Labels", {}).get("ray.io/accelerator-type", "slot")).lower()
            )
            taken = tuple(range(min(gpus, max(0, round(used)))))
            made.append(replace(self._set.node, node=name, gpu=kind, gpus=gpus, taken=taken))
        return made

    def _held(self) -> dict[str, Held]:
        """By lease. A group's name says whose it is: it is all that a new server finds."""
        from ray.util.placement_group import get_placement_group

        found = {}
        for each in self._ray.util.placement_group_table().values():
            mark, _, rest = str(each["name"]).partition("|")
            lease, _, nodes = rest.partition("|")
            if mark == self._set.namespace and each["state"] != "REMOVED":
                group = get_placement_group(each["name"])
                found[lease] = Held(group, lease, tuple(nodes.split(",")), each["state"])
        return found

    def _bundles(self, held: Held) -> list[float]:
        return [bundle.get("GPU", 0) for bundle in held.group.bundle_specs]

    def _agent(self, name: str, alive: Mapping[str, dict[str, Any]]) -> Any:  # noqa: ANN401 - Ray's own
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        node_id = alive[name]["NodeID"]
        known = self._agents.get(name)
        if known is None or known[0] != node_id:
            made = self._ray.remote(NodeAgent).options(
                name=f"agent-{name}-{node_id[:12]}",
                lifetime="detached",
                get_if_exists=True,
                num_cpus=0,
                max_restarts=-1,
                max_concurrency=1,
                scheduling_strategy=NodeAffinitySchedulingStrategy(node_id, soft=False),
            )
            node = replace(self._set.node, node=name)
            self._agents[name] = (node_id, made.remote(self._set.folder, node, dict(self._set.engine)))
        return self._agents[name][1]

    def _ask(self, names: Collection[str], method: str, *arguments: object) -> dict[str, Any]:
        """What each node's agent answers; those that do not are left out."""
        alive = self._alive()
        asked = {n: getattr(self._agent(n, alive), method).remote(*arguments) for n in names if n in alive}
        until, answers = time.monotonic() + ANSWER_S, {}
        for name, each in asked.items():
            try:
                answers[name] = self._ray.get(each, timeout=max(0.1, until - time.monotonic()))
            except self._ray.exceptions.RayError:
                self._agents.pop(name, None)  # looked up anew
        return answers

    # -- leases ------------------------------------------------------------------------------------------

    def start(
        self, starts: Sequence[tuple[Start, Mapping[str, str], bytes | None]], store_env: Mapping[str, str]
    ) -> dict[str, BrimfulError]:
        failed: dict[str, BrimfulError] = {}
        held = self._held()
        begun = self._begun([start for start, *_ in starts])
        new = {each[0].lease: each for each in starts if each[0].lease not in begun}
        groups = {}
        for lease, (start, *_) in new.items():  # all asked for first: they are placed side by side
            groups[lease] = held[lease].group if lease in held else self._place(start)
        for start, env, archive in new.values():
            try:
                given = {"env": env, "archive": archive, "store_env": store_env}
                error = self._start(start, groups[start.lease], given)
            except self._ray.exceptions.RayError as foreign:
                error = WorldFailed(verbatim(str(foreign)[:300]))
            if error is not None:
                failed[start.lease] = error
        return failed

    def _begun(self, starts: Sequence[Start]) -> set[str]:
        """Leases that were begun before. A gang of which only some were is ended: it can never be whole."""
        answers = self._ask(list(self._alive()), "begun", [start.lease for start in starts])
        begun = {lease for found in answers.values() for lease in found}
        for start in starts:
            names = {name for name, _ in start.parts}
            if start.lease in begun and any(start.lease not in answers.get(name, ()) for name in names):
                self._ask(names, "stop", [start.lease], KILL_S)
        return begun

    def _place(self, start: Start) -> Any:  # noqa: ANN401
        alive = self._alive()
        if any(name not in alive for name, _ in start.parts):
            return None
        return self._ray.util.placement_group(
            [{"GPU": len(gpus)} for _, gpus in start.parts],
            bundle_label_selector=[{"ray.io/node-id": alive[name]["NodeID"]} for name, _ in start.parts],
            name=f"{self._set.namespace}|{start.lease}|{','.join(name for name, _ in start.parts)}",
            lifetime="detached",
        )

    def _start(
        self,
        start: Start,
        group: Any,  # noqa: ANN401
        given: Mapping[str, Any],
    ) -> BrimfulError | None:
        names = [name for name, _ in start.parts]
        if group is None or not group.wait(PLACED_S):
            if group is not None:
                self._ray.util.remove_placement_group(group)
            return CannotStart(say("adapters.ray_not_placed", lease=start.lease, nodes=", ".join(names)))
        devices = self._devices(start.parts, group)
        alive = self._alive()
        port = self._ask(names[:1], "port").get(names[0])
        if port is None or len(alive.keys() & set(names)) < len(set(names)):
            return WorldFailed(say("adapters.ray_no_agent", node=names[0]))
        master = (alive[names[0]]["NodeManagerAddress"], port)
        asked = {}
        for rank, (name, gpus) in enumerate(start.parts):
            part = Part(
                start._replace(parts=((name, tuple(range(len(gpus)))),)),
                rank,
                len(names),
                devices[rank],
                master,
                **given,
            )
            asked[name] = self._agent(name, alive).start.remote(part)
        failed = [
            error for error in self._ray.get(list(asked.values()), timeout=ANSWER_S) if error is not None
        ]
        if failed:
            self._ask(names, "stop", [start.lease], KILL_S)
        return failed[0] if failed else None

    def _devices(self, parts: Parts, group: Any) -> list[tuple[int, ...]]:  # noqa: ANN401
        """Which GPUs each bundle holds: a task inside it is told."""
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
        for answer in self._ask(list(self._alive()), "stop", list(leases), grace_s).values():
            failed |= answer
        return failed

    def warn(self, lease: str, until_s: int | None) -> None:
        self._ask(list(self._alive()), "warn", lease, until_s)

    def observe(self, leases: Collection[str]) -> list[Observation]:
        alive, held = self._alive(), self._held()
        answers = self._ask(list(alive), "observe", list(leases))
        parts: dict[str, dict[int, tuple[str, Seen]]] = {lease: {} for lease in leases}
        for name, (seen, living) in answers.items():
            for each in seen:
                parts[each.observation.lease][each.rank] = (name, each)
            self._end_orphans(name, set(living) - set(leases))
        all_answered = answers.keys() == alive.keys()
        looks = (self._look_at(lease, those, held.get(lease), alive) for lease, those in parts.items())
        found = [each for each in looks if each is not None]
        if all_answered:
            living = {lease for _, those in answers.values() for lease in those}
            for lease in held.keys() - set(leases) - living:  # it ended while we were away
                self._ray.util.remove_placement_group(held[lease].group)
            return found
        # Whoever did not answer may have the rest of a gang, or what seems to be nowhere.
        whole = {lease for lease, those in parts.items() if those and len(those) == _ranks(those)}
        return [each for each in found if each.lease in whole]

    def _look_at(
        self,
        lease: str,
        those: Mapping[int, tuple[str, Seen]],
        held: Held | None,
        alive: Collection[str],
    ) -> Observation | None:
        """What the lease is; a gang of which a part failed or was lost is ended before that is told."""
        lost = [] if held is None else [name for name in held.nodes if name not in alive]
        one = _merged(lease, those, lost=lost) or Observation(lease=lease, state="absent")
        unfinished = [name for name, each in those.values() if each.observation.state != "ended"]
        is_ending = bool(lost) or _one_failed(those)
        if unfinished and is_ending:
            # One that is on its way runs a moment later, and can be told to leave as the others are.
            if not any(_is_on_its_way(each.observation) for _, each in those.values()):
                self._ask(unfinished, "stop", [lease], KILL_S if lost else GRACE_S)
            return None
        if one.state == "ended" and held is not None:
            self._ray.util.remove_placement_group(held.group)
        return one

    def _end_orphans(self, node: str, orphans: Collection[str]) -> None:
        now = time.monotonic()
        keys = {f"{node} {lease}": lease for lease in orphans}
        for key in [key for key in self._living_since if key.startswith(f"{node} ") and key not in keys]:
            del self._living_since[key]
        late = [
            lease for key, lease in keys.items() if now - self._living_since.setdefault(key, now) > ORPHAN_S
        ]
        if late:
            self._ask([node], "stop", late, KILL_S)

    def log(self, lease: str, rank: int, offset: int, limit: int) -> LogPiece | None:
        ranks = self._ask(list(self._alive()), "rank_of", lease)
        node = next((name for name, found in ranks.items() if found == rank), None)
        return None if node is None else self._ask([node], "log", lease, offset, limit).get(node)

    def sample(self, lease: str) -> bytes | None:
        found = self._ask(list(self._alive()), "rank_of", lease)
        node = next((name for name, rank in found.items() if rank == 0), None)
        return None if node is None else self._ask([node], "sample", lease).get(node)


def _gpus() -> list[Any]:
    import ray

    return list(ray.get_gpu_ids())


def _ranks(those: Mapping[int, tuple[str, Seen]]) -> int:
    """How many the lease has, as each of its parts knows."""
    return max((each.ranks for _, each in those.values()), default=1)


def _is_on_its_way(seen: Observation) -> bool:
    return seen.state == "absent" or (seen.state == "waiting" and seen.problem is None)


def _one_failed(those: Mapping[int, tuple[str, Seen]]) -> bool:
    """A gang ends whole: the others would wait for that one for ever."""
    return any(each.observation.state == "ended" and each.observation.exit_code for _, each in those.values())


def _merged(lease: str, those: Mapping[int, tuple[str, Seen]], *, lost: Sequence[str]) -> Observation | None:
    """What a lease is, by what its parts are; None: there is no trace of it."""
    if not those and not lost:
        return None
    seen = [each.observation for _, (_, each) in sorted(those.items())]
    ranks = _ranks(those)
    states = {each.state for each in seen}
    started = min((each.started_s for each in seen if each.started_s is not None), default=None)
    if lost and states <= {"ended"}:
        ended = max((each.ended_s for each in seen if each.ended_s is not None), default=None)
        said = say("adapters.ray_node_lost", node=", ".join(lost))
        return Observation(
            lease=lease, state="ended", started_s=started, ended_s=ended, problem=said, cause="node_lost"
        )
    if states == {"ended"}:
        whole = _ended(lease, seen, started)
        # Of a gang that our server left half-begun: it was not the job's fault.
        return whole if len(those) == ranks else replace(whole, exit_code=None, cause="preempted_by_engine")
    if states == {"absent"}:
        return None
    first = next((each for each in seen if each.state == "waiting"), seen[0] if seen else None)
    if first is None or first.state in {"ended", "absent"} or len(those) < ranks:
        return Observation(
            lease=lease, state="waiting", problem=say("adapters.ray_parts", begun=len(those), of=ranks)
        )
    return replace(first, started_s=started)


def _ended(lease: str, seen: Sequence[Observation], started: int | None) -> Observation:
    codes = tuple(each.exit_code for each in seen)
    ends = [(each.ended_s or 0, rank) for rank, each in enumerate(seen)]
    # A rank that we stopped because another had failed is not the one that failed.
    failed = [(seen[rank].cause != "failed", end, rank) for end, rank in ends if seen[rank].exit_code != 0]
    rank = min(failed)[2] if failed else 0
    first = seen[rank]
    problem = first.problem
    if failed and len(seen) > 1 and problem is not None:
        problem = say("adapters.rank_failed", rank=rank, how=problem)
    return Observation(
        lease=lease,
        state="ended",
        started_s=started,
        ended_s=max(end for end, _ in ends) or None,
        exit_code=first.exit_code,
        problem=problem,
        kept_work_s=seen[0].kept_work_s,
        cause=first.cause,
        exit_codes=codes if len(codes) > 1 else (),
        resumes_s=seen[0].resumes_s,
        moved_bytes=sum(each.moved_bytes for each in seen),
    )


def main(handle: int) -> int:
    pipe = Connection(handle)
    try:
        bridge = Bridge(pipe.recv())
        pipe.send(("ok", None))
    except Exception as error:  # noqa: BLE001 - whatever Ray raises is told
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
            pipe.send(("failed", str(error.said)))
        except Exception as error:  # noqa: BLE001
            pipe.send(("failed", f"{type(error).__name__}: {error}"[:500]))


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1])))
