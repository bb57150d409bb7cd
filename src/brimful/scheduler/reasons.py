"""Every sentence that says why a job waits or why its lease ends, with its numbers. Nothing here decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from brimful.fleet.job import WHOLE_GPU, Job
from brimful.fleet.node import Pool
from brimful.market.auction import Loss
from brimful.units import show_bytes, show_seconds, show_usd

CANCELLED = "cancelled"
MAKES_ROOM = "makes room for jobs that gain more"
WHOLE_GPUS_ONLY = "a market pool sells whole GPUs only"
UNPLANNED = "its deadline cannot be planned for: nobody said how much work it is"
ENDS_SOON = "ends soon"


# --- why a lease ends ------------------------------------------------------------------------------------


def has_run_its(longest_s: int) -> str:
    return f"it has run its {show_seconds(longest_s)}"


def budget_used_up(budget_microusd: int) -> str:
    return f"its budget of {show_usd(budget_microusd)} is used up"


def tenant_spent(tenant: str) -> str:
    return f"{tenant} has spent its budget"


def preempted_by(job: str) -> str:
    return f"preempted by {job}"


def moves_to(gpu: str) -> str:
    return f"moves to {gpu}"


def makes_a_node(job: str) -> str:
    return f"makes a whole node for {job}"


def gives_back(queue: str, *, held: int, own: int, gives: int) -> str:
    return f"queue {queue} held {held} of its {own} GPUs and gives {gives} back to those who lent them"


def lost_by_engine(site: str) -> str:
    return f"the engine at {site} has lost it"


# --- why a job waits: its place in the queue -------------------------------------------------------------


def both(reason: str, told: str) -> str:
    return f"{reason}; {told}"


def others_will_stop(reason: str, jobs: Sequence[str]) -> str:
    return f"{reason}; {', '.join(jobs)} will stop for it"


def not_back(reason: str, site: str, left_s: int) -> str:
    return f"{reason}; not back to {site}, where it has just failed, for {left_s} s"


def waits_behind(blocked: Job, reason: str) -> str:
    return f"waits behind {blocked.job}, which needs {blocked.gpus}; {reason}"


def kept_for(reason: str, jobs: Sequence[str]) -> str:
    return f"{reason}; they are kept for {', '.join(jobs) or 'gangs that are being made room for'}"


# --- why a job waits: money, quotas, quiet hours ---------------------------------------------------------


def tenant_lacks(tenant: str, *, left_microusd: int, microusd: int) -> str:
    return (
        f"{tenant} has {show_usd(max(0, left_microusd))} of its budget left and this may cost "
        f"{show_usd(microusd)} before anybody looks again; `brimful budget` shows and sets it"
    )


def may_not_borrow(queue: str, *, held: int, own: int, gpus: int, borrows: int, most: int) -> str:
    return (
        f"queue {queue} holds {held} of its {own} GPUs; {gpus} more would borrow {borrows}, "
        f"and it may borrow {most}"
    )


def too_few_to_lend(queue: str, *, held: int, own: int, gpus: int, idle: int) -> str:
    return (
        f"queue {queue} holds {held} of its {own} GPUs and would borrow; "
        f"{max(0, idle)} are there to lend, it wants {gpus}"
    )


def quiet_hour(*, free: int, gpus: int, left_h: float) -> str:
    return f"waits for a quiet hour: {free} of {gpus} GPUs are free; starts in {left_h:.1f} h at the latest"


# --- the market: who loses, who leaves, who waits for others to leave ------------------------------------


def lost_bid(loss: Loss, pool: Pool, *, drain: str | None) -> str:
    """`drain`: the gang that GPUs are kept for."""
    whom = "it" if drain == loss.bid.bid else drain
    kept = f"; what becomes free is kept for {whom}" if drain else ""
    return f"bids {show_usd(loss.bid.limit)} for {pool.gpu} at {pool.site}: {loss.detail}{kept}"


def winner_waits(pool: Pool, *, price: int, leaving: Sequence[str], left_s: int | None) -> str:
    when = "" if left_s is None else f" in {show_seconds(left_s)}"
    won = f"has won {pool.gpu} at {pool.site} for {show_usd(price)} per GPU-hour"
    return f"{won}; waits for {', '.join(leaving[:5]) or 'others'} to leave{when}"


def moves_within_pool(job: str) -> str:
    return f"moves within the pool: {job} needs a whole node"


def outbid(by: Sequence[str], *, price: int, loss: Loss | None) -> str:
    who = f" by {', '.join(by[:3])}{', …' if len(by) > 3 else ''}" if by else ""
    stays = ""
    if loss is not None and loss.shadow_price is not None:
        stays = f"; it bids {show_usd(loss.bid.limit)} and would stay above {show_usd(loss.shadow_price)}"
    return f"outbid{who}, at {show_usd(price)} per GPU-hour{stays}"


# --- deadlines: firm capacity, spot or nothing -----------------------------------------------------------


def firm_too_late(tier: str, left_s: int) -> str:
    return f"{tier} would be late: {_to_deadline(left_s)}"


def firm_only_late(tier: str, work_s: float, setup_s: float, left_s: int) -> str:
    return f"{tier} only, and late: {_work(work_s, setup_s)}, {_to_deadline(left_s)}"


def firm_only_unsaved(tier: str) -> str:
    return f"{tier} only: it saves nothing while it runs, so what spot takes away would be lost"


def firm_only_now(tier: str, work_s: float, setup_s: float, left_s: int) -> str:
    return f"{tier} only: {_work(work_s, setup_s)}, {_to_deadline(left_s)}"


def firm_only_paid(tier: str, tried_microusd: int, left_microusd: int) -> str:
    left = show_usd(left_microusd)
    return f"{tier} only: with a try on spot it could come to {show_usd(tried_microusd)}, and {left} are left"


def firm_cheapest(tier: str, slack_s: float) -> str:
    return f"{tier} is expected to cost least: {show_seconds(slack_s)} to spare"


def moves_to_spot(spot_hourly: int, firm_hourly: int, slack_s: float) -> str:
    spot, firm, slack = show_usd(spot_hourly), show_usd(firm_hourly), show_seconds(slack_s)
    return f"moves to spot at {spot} an hour instead of {firm}: {slack} to spare"


def waits_for_spot(tier: str, slack_s: float, until_s: float, *, there: bool) -> str:
    what = "for spot that lasts" if there else "for spot to come back"
    until = show_seconds(until_s)
    return f"waits {what}: {show_seconds(slack_s)} to spare; takes {tier} in {until} at the latest"


def firm_too_dear(tier: str, work_s: float, setup_s: float, *, microusd: int, left_microusd: int) -> str:
    cost = f"{_work(work_s, setup_s)} cost {show_usd(microusd)} on {tier}"
    return f"{cost}, and {show_usd(left_microusd)} of its budget are left"


def cannot_pay(firm_too_dear: str, spot_microusd: int) -> str:
    why = f"does not start, since its budget would stop it: {firm_too_dear}"
    return f"{why}; spot would cost {show_usd(spot_microusd)}"


def spot_only(firm_too_dear: str, spot_microusd: int) -> str:
    return f"spot only ({show_usd(spot_microusd)}), and its deadline is not safe: {firm_too_dear}"


def _work(work_s: float, setup_s: float) -> str:
    more = f" and {show_seconds(setup_s)} to start" if setup_s else ""
    return f"{show_seconds(work_s)} of work{more}"


def _to_deadline(left_s: int) -> str:
    if left_s < 0:
        return f"and its deadline was {show_seconds(-left_s)} ago"
    return f"{show_seconds(left_s)} to its deadline"


# --- why a job waits: no place ---------------------------------------------------------------------------


def no_such_gpus(job: Job, has: Sequence[str], drained: int) -> str:
    none = "no node that takes work" if drained else "no nodes at all"
    whose = f"the site {' or '.join(job.sites)}" if job.sites else "the fleet"
    return f"wants GPUs of {_kind(job)}; {whose} has {', '.join(has) or none}{_drained(drained)}"


def too_little_memory(job: Job, small: Mapping[str, tuple[int, int]]) -> str:
    """`small`: by GPU type, the bytes it needs and those it would have."""
    share = f"its share of {job.gpu_milli / 10:g} % of a GPU" if job.gpu_milli < WHOLE_GPU else "a GPU"
    told = (
        f"{show_bytes(needs)} on {gpu}, of which {share} has {show_bytes(has)}"
        for gpu, (needs, has) in sorted(small.items())
    )
    return f"does not fit in memory: needs {'; '.join(told)}"


def too_large_for_a_node(job: Job, drained: int) -> str:
    return f"wants {_host(job)} on one node; no node has as much{_drained(drained)}"


def too_large_for_hosts(job: Job, most: int, drained: int) -> str:
    wants = f"{_gpus(job)} ({_kind(job)}) with {_host(job)}"
    return f"wants {wants}; its nodes have room for {most}{_drained(drained)}"


def too_wide(job: Job, within: str, most: int, drained: int) -> str:
    where, largest = {
        "nvlink": ("in one NVLink domain", "the largest"),
        "node": ("on one node", "the largest node"),
        "rack": ("within one rack", "the largest rack"),
        "pool": ("of one type", "the largest pool"),
    }[within]
    return f"wants {job.gpus} GPUs ({_kind(job)}) {where}; {largest} has {most}{_drained(drained)}"


def no_pool_open(job: Job) -> str:
    return f"wants {_gpus(job)} ({_kind(job)}); no such site can be reached at a price it accepts"


def too_few_free(job: Job, most: int, total: int) -> str:
    where = {"nvlink": "on one node", "node": "on one node", "any": "in one pool"}
    place = where.get(job.within, f"within one {job.within}")
    return f"wants {_gpus(job)} {place}; {most} free on the best node ({total} in all)"


def _kind(job: Job) -> str:
    return " or ".join(job.gpu_types or [name for name, _ in job.rates]) or "any type"


def _gpus(job: Job) -> str:
    return "1 GPU" if job.gpus == 1 else f"{job.gpus} GPUs"


def _host(job: Job) -> str:
    cpus = [f"{job.cpu_milli / 1000:,.10g} CPUs"] if job.cpu_milli else []
    return " and ".join(cpus + [show_bytes(job.memory_mib << 20)] * bool(job.memory_mib))


def _drained(nodes: int) -> str:
    return f" ({nodes} of its nodes drained)" if nodes else ""
