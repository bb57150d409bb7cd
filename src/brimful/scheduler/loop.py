"""`tick`: one pass of the control loop, live and simulated alike.

    load ─▶ observe ─▶ fold ─▶ clear ─▶ decide ─▶ record the intent ─▶ act

An intent is in the log before anything is done, and every act is idempotent by lease: a crash at any line
is mended by the next tick, which does again what the log says should have been done.

A decision stands until something happens that it did not order, or the moment comes that its plan names. So a
server that looks every second decides when a rehearsal does, which looks only then, and decides the same.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace

from brimful.errors import BrimfulError, Said, WorldFailed
from brimful.fleet.events import (
    Event,
    JobSkipped,
    LeaseEnded,
    LeaseStarted,
    NodeJoined,
    NodeLeft,
    SiteFound,
    SiteLost,
)
from brimful.fleet.state import Fleet, JobState, Lease, Node
from brimful.language import say
from brimful.scheduler.decide import decide
from brimful.scheduler.plan import Plan
from brimful.scheduler.ports import CannotStart, Carries, Decided, Engine, Observation, Ports, Warns
from brimful.scheduler.rules import Rules

# Another writer can get in between reading and writing only so often before something is badly wrong.
MAX_CONFLICTS = 100
IDLE_LOOK_S = 61  # past any moment at which policies review


@dataclass(slots=True)
class Tick:
    """What one pass decided, and which sites could not be reached or did not obey."""

    plan: Plan
    problems: dict[str, Said] = field(default_factory=dict)


def tick(fleet: Fleet, ports: Ports, rules: Rules, *, now_s: int) -> Tick:
    problems: dict[str, Said] = {}
    for _ in range(MAX_CONFLICTS):
        catch_up(fleet, ports)
        stood = fleet.seq == ports.decided.seq
        news = _observe(fleet, ports, problems, now_s=now_s)
        if news and not _record(fleet, ports, news):
            continue
        ports.unrecorded.clear()
        if fleet.gates.doomed and not _record(fleet, ports, _skips(fleet, now_s=now_s)):
            continue
        if stood and _was_ordered(fleet, ports, news):
            ports.decided.seq = fleet.seq
        if not problems and _stands(fleet, ports.decided, now_s=now_s):
            plan = Plan(waits=ports.decided.plan.waits, look_again_s=ports.decided.plan.look_again_s)
            break
        prices = fleet.posted_prices()
        plan = decide(fleet, rules, prices, now_s=now_s, unreachable=problems.keys(), market=ports.market)
        decided = plan.intents
        if not decided or _record(fleet, ports, decided):
            ports.decided.seq, ports.decided.at_s, ports.decided.plan = fleet.seq, now_s, plan
            break
    else:
        raise WorldFailed(say("scheduler.log_keeps_moving", times=MAX_CONFLICTS))
    if fleet.unsettled or fleet.warned:
        _act(fleet, ports, rules, problems, now_s=now_s)
    return Tick(plan, problems)


def _skips(fleet: Fleet, *, now_s: int) -> list[Event]:
    """The end of every job that can never start: what it comes after did not end as it needs."""
    doomed, skips = fleet.gates.all_doomed(), list[Event]()
    for name, ended in doomed.items():
        if ended in fleet.gates.arrays:
            reason = say("scheduler.never_starts_array", after=ended)
        else:
            phase = "skipped" if ended in doomed else fleet.jobs[ended].phase
            reason = say("scheduler.never_starts", after=ended, phase=say(f"fleet.phase_{phase}"))
        skips.append(JobSkipped(at_s=now_s, job=name, reason=reason))
    return skips


def _was_ordered(fleet: Fleet, ports: Ports, news: Sequence[Event]) -> bool:
    """Whether there is nothing but starts in it, and none from which on a limit counts."""
    if ports.market is not None or fleet.purses or (fleet.due and fleet.spot):
        return not news
    return all(isinstance(event, LeaseStarted) and not fleet.has_limit(event.lease) for event in news)


def _stands(fleet: Fleet, decided: Decided, *, now_s: int) -> bool:
    """Whether to decide again would decide the same."""
    if fleet.seq != decided.seq:
        return False
    if len(fleet.waiting) and not fleet.open_leases and now_s >= decided.at_s + IDLE_LOOK_S:
        return False  # nothing moves, and nothing will unless somebody looks outside of a review
    again_s = decided.plan.look_again_s
    return again_s is None or now_s < again_s


def catch_up(fleet: Fleet, ports: Ports) -> None:
    while events := ports.store.since(fleet.seq):
        for event in events:
            fleet.apply(event)


def _record(fleet: Fleet, ports: Ports, events: list[Event]) -> bool:
    """Write and fold, or say that the log has moved on."""
    if not ports.store.append(events, after=fleet.seq):
        return False
    apply = fleet.apply
    for event in events:
        apply(event)
    return True


def _observe(fleet: Fleet, ports: Ports, problems: dict[str, Said], *, now_s: int) -> list[Event]:
    """What the engines tell, as events."""
    news: list[Event] = []
    for pool in fleet.capacity.pools:
        if pool.site not in ports.engines:
            gone = [name for name, node in fleet.nodes.items() if node.site not in ports.engines]
            news += [NodeLeft(at_s=now_s, node=name) for name in gone]
            break
    for site, engine in ports.engines.items():
        try:
            nodes, seen = engine.nodes(), engine.observe(fleet.leases_at.get(site, {}).keys())
        except BrimfulError as error:
            # Unreachable is not ended: its jobs are unknown, and nothing of theirs starts elsewhere.
            problems[site] = error.said
            if site not in fleet.silent:
                news.append(SiteLost(at_s=now_s, site=site, reason=error.said))
            continue
        if site in fleet.silent:
            news.append(SiteFound(at_s=now_s, site=site))
        agreed = ports.agreed.get(site)
        if agreed is None or agreed[0] is not nodes or agreed[1] != fleet.nodes_changed:
            here = {node.node: node if node.site == site else replace(node, site=site) for node in nodes}
            changes = list(_node_changes(fleet, site, here, now_s=now_s))
            if not changes:
                ports.agreed[site] = (nodes, fleet.nodes_changed)
            news += changes
        if seen:
            ports.unrecorded.setdefault(site, []).extend(seen)
        heard = ports.unrecorded.get(site)
        if heard:
            news += _heard(fleet, ports, heard, nodes, now_s=now_s)
    return news


def _heard(
    fleet: Fleet, ports: Ports, heard: Sequence[Observation], nodes: Sequence[Node], *, now_s: int
) -> list[Event]:
    news: list[Event] = []
    for seen in {each.lease: each for each in heard}.values():  # the last word on each
        lease = fleet.open_leases.get(seen.lease)
        if lease is not None:
            state = fleet.jobs[lease.job]
            was_known = lease.started_s is not None or lease.lease in ports.stopped
            taken = bool(fleet.spot) and seen.state != "running" and _taken_away(fleet, lease, nodes)
            news += _lease_changes(lease, state, seen, was_known=was_known, taken=taken, now_s=now_s)
    return news


def _node_changes(fleet: Fleet, site: str, nodes: dict[str, Node], *, now_s: int) -> Iterator[Event]:
    for name, node in nodes.items():
        if fleet.nodes.get(name) != node:
            yield NodeJoined.of(node, at_s=now_s)
    for name, known in fleet.nodes.items():
        if known.site == site and name not in nodes:
            yield NodeLeft(at_s=now_s, node=name)


def _taken_away(fleet: Fleet, lease: Lease, nodes: Sequence[Node]) -> bool:
    """Whether a job with a deadline lost a spot node: it planned with that, and goes on."""
    if fleet.jobs[lease.job].job.deadline_s is None:
        return False
    there = {node.node for node in nodes}
    return any(
        name not in there and (known := fleet.nodes.get(name)) is not None and known.tier == "spot"
        for name, _ in lease.parts
    )


def _lease_changes(
    lease: Lease, state: JobState, seen: Observation, *, was_known: bool, taken: bool, now_s: int
) -> list[Event]:
    if seen.state == "absent":
        if lease.phase == "granted" or not was_known:
            # `_act` will start it, or stop it: a server that died, or sleeps, may have ordered a start that
            # has yet to begin, and finds out only then that it is too late.
            return []
        # It ran, or was told to stop before it ran, and the engine has no trace of it: it holds nothing.
        reason = lease.reason or say("scheduler.lost_by_engine", site=lease.site)
        again = lease.phase != "ending" and (_tries_left(state) or (taken and not state.cancel_requested))
        return [LeaseEnded(at_s=now_s, lease=lease.lease, exit_code=None, reason=reason, requeue=again)]
    changes: list[Event] = []
    if lease.started_s is None and seen.started_s is not None:
        changes.append(LeaseStarted(seen.started_s, lease.lease))
    if seen.state == "ended":
        goes_on = seen.exit_code != 0 and lease.phase != "ending" and _goes_on(lease, state, taken=taken)
        changes.append(
            LeaseEnded(
                at_s=now_s if seen.ended_s is None else seen.ended_s,
                lease=lease.lease,
                exit_code=seen.exit_code,
                reason=seen.problem,
                kept_work_s=seen.kept_work_s,
                requeue=goes_on,
            )
        )
    return changes


def _tries_left(state: JobState) -> bool:
    return state.failures < state.job.retries and not state.cancel_requested


def _goes_on(lease: Lease, state: JobState, *, taken: bool) -> bool:
    """Who leaves while it is on notice has done as it was told, and waits for other GPUs."""
    not_its_fault = (lease.notice_s is not None or taken) and not state.cancel_requested
    return not_its_fault or _tries_left(state)


def _act(fleet: Fleet, ports: Ports, rules: Rules, problems: dict[str, Said], *, now_s: int) -> None:
    """Carry out every intent the log holds, not only this tick's: an earlier one may have been cut short."""
    failed: list[Event] = []
    if ports.stopped:
        ports.stopped.intersection_update(fleet.unsettled)
    silent = frozenset(problems)  # one lease's trouble keeps nobody else at its site from being acted on
    for lease in list(fleet.unsettled.values()):
        if lease.site in silent:
            continue
        engine = ports.engines.get(lease.site)
        if engine is None:
            problems[lease.site] = say("scheduler.no_engine", site=lease.site, job=lease.job)
            continue
        ports.may_act()
        try:
            _act_on(lease, fleet, ports, engine, rules)
        except CannotStart as error:
            if lease.phase == "granted":
                failed.append(
                    LeaseEnded(
                        at_s=now_s,
                        lease=lease.lease,
                        exit_code=None,
                        reason=error.said,
                        requeue=_tries_left(fleet.jobs[lease.job]),
                    )
                )
        except BrimfulError as error:
            # It may run or not: the GPUs stay taken, and the next tick asks again.
            problems[lease.site] = error.said
    if fleet.warned:
        _warn(fleet, ports, silent, problems)
    if failed:
        # Should somebody else have written meanwhile, the next tick finds the same and says it again.
        _record(fleet, ports, failed)


def _warn(fleet: Fleet, ports: Ports, silent: Collection[str], problems: dict[str, Said]) -> None:
    """Tell jobs that will have to leave, and those that may stay after all; the engine knows what it told."""
    for lease in list(fleet.warned.values()):
        engine: object = ports.engines.get(lease.site)
        if lease.phase != "running" or lease.site in silent or not isinstance(engine, Warns):
            continue
        ports.may_act()
        try:
            engine.warn(lease.lease, until_s=lease.notice_s)
        except BrimfulError as error:
            problems[lease.site] = error.said


def _act_on(lease: Lease, fleet: Fleet, ports: Ports, engine: Engine, rules: Rules) -> None:
    if lease.phase == "granted":
        state = fleet.jobs[lease.job]
        job = state.job
        before = ports.engines.get(_ran_last_at(state)) if len(state.leases) > 1 else None
        if before is not None and before is not engine and isinstance(before, Carries):
            if not isinstance(engine, Carries):
                raise CannotStart(
                    say(
                        "scheduler.cannot_fetch_checkpoint",
                        site=lease.site,
                        job=job.job,
                        origin=before.site,
                    )
                )
            engine.start_from(lease.lease, before.checkpoints(job.job))
        engine.start(lease.lease, job, node=lease.node, gpus=lease.gpus, rest=lease.rest)
    else:
        engine.stop(lease.lease, grace_s=rules.grace_s)
        ports.stopped.add(lease.lease)


def _ran_last_at(state: JobState) -> str:
    """The site where the job last ran; empty where it never did."""
    return next((lease.site for lease in reversed(state.leases) if lease.started_s is not None), "")
