"""Machines: what is for sale, what was bought, and what would be bought for a job."""

from __future__ import annotations

from collections.abc import Iterator
from math import exp, floor

from brimful.adapters.capabilities import Complains, Examines
from brimful.client.cloud_answers import (
    CloudAnswer,
    CloudPlanAnswer,
    MachineAnswer,
    OfferAnswer,
    PlaceAnswer,
    ProviderAnswer,
)
from brimful.errors import BrimfulError, Said
from brimful.fleet.cloud import Machine, trouble_with
from brimful.fleet.events import OfferSeen
from brimful.fleet.job import Job
from brimful.fleet.memory import too_small
from brimful.fleet.state import JobState, Pool
from brimful.language import Usd, count, say, told
from brimful.scheduler.cloud.buying import Buying, Opening, Shop
from brimful.scheduler.cloud.providers import Provider
from brimful.server.service.reader import Reader
from brimful.units import HOUR_S

NOTHING = Buying(hourly_microusd=0, monthly_microusd=0)


def _shop(reader: Reader) -> Shop:
    problems = reader.health.problems.keys()
    return Shop(reader.fleet, reader.buying or NOTHING, now_s=reader.now_s(), unreachable=problems)


def cloud_view(reader: Reader) -> CloudAnswer:
    with reader.locked():
        now_s, cloud, buying = reader.now_s(), reader.fleet.cloud, reader.buying or NOTHING
        problems = {
            provider.name: told(said)
            for provider in reader.providers
            if (said := reader.health.problems.get(trouble_with(provider.name))) is not None
        }
        return {
            "now_s": now_s,
            "is_buying": reader.buying is not None,
            "dry_run": buying.dry_run,
            "hourly_cap_microusd": buying.hourly_microusd or 0,
            "monthly_cap_microusd": buying.monthly_microusd or 0,
            "hourly_microusd": cloud.hourly_microusd(),
            "month_microusd": -(-cloud.owed_in_month(now_s) // HOUR_S),
            "machines": [_machine(reader, each, now_s=now_s) for each in cloud.machines.values()],
            "problems": problems,
        }


def _machine(reader: Reader, machine: Machine, *, now_s: int) -> MachineAnswer:
    held = reader.fleet.leases_on.get(machine.node, {}).values()
    jobs = dict.fromkeys([*(lease.job for lease in held), *([machine.job] if machine.job else [])])
    state = "ordered" if machine.ready_s is None else "ready"
    return {
        "node": machine.node,
        "provider": machine.offer.provider,
        "site": machine.pool.site,
        "gpu": machine.pool.gpu,
        "gpus": machine.order.gpus,
        "tier": machine.pool.tier,
        "state": "returned" if machine.returned_s is not None else state,  # type: ignore[typeddict-item]
        "jobs": list(jobs),
        "ordered_s": machine.order.at_s,
        "ready_s": machine.ready_s,
        "microusd_per_hour": machine.microusd_per_hour,
        "cost_microusd": machine.cost_microusd(now_s),
        "reason": told(machine.order.reason) if machine.order.reason else "",
    }


def offers_view(reader: Reader) -> list[OfferAnswer]:
    with reader.locked():
        now_s, shop, cloud = reader.now_s(), _shop(reader), reader.fleet.cloud
        found = [
            _offer(shop, offer, cloud.refused.get((pool, gpus)), now_s=now_s)
            for pool, sizes in cloud.offers.items()
            for gpus, offer in sizes.items()
        ]
    return sorted(found, key=lambda each: (not each["is_there"], each["microusd_per_gpu_hour"], each["site"]))


def _offer(shop: Shop, offer: OfferSeen, refused: tuple[int, int] | None, *, now_s: int) -> OfferAnswer:
    until_s = None if refused is None or refused[1] <= now_s else refused[1]
    return {
        "provider": offer.provider,
        "site": offer.site,
        "region": offer.region,
        "instance": offer.instance,
        "gpu": offer.gpu,
        "gpus": offer.gpus,
        "tier": offer.tier,
        "microusd_per_gpu_hour": offer.microusd_per_gpu_hour,
        "microusd_per_hour": offer.microusd_per_gpu_hour * offer.gpus,
        "is_there": offer.is_there and until_s is None,
        "refused_until_s": until_s,
        "stays_hours": round(shop.stay_hours(offer.pool), 2) if offer.tier == "spot" else None,
        "lead_s": offer.lead_s,
    }


def plan_view(reader: Reader, job: Job) -> CloudPlanAnswer:
    """Uses the same calculation as the loop; stores nothing."""
    with reader.locked():
        now_s, shop, fleet = reader.now_s(), _shop(reader), reader.fleet
        state = JobState(job, -1, -1, now_s, now_s)
        own = [pool for pool in fleet.capacity.pools if _has_room(reader, job, pool)]
        openings = list(shop.openings(state).values())
        places = [_place(shop, state, opening, now_s=now_s) for opening in openings]
    places.sort(key=lambda each: (each["total_microusd"] or each["microusd_per_hour"], each["site"]))
    verdict, said = _verdict(reader, job, own, places)
    code = str(said.as_dict()["code"])
    return {"verdict": verdict, "said": told(said), "said_code": code, "places": places}  # type: ignore[typeddict-item]


def _verdict(reader: Reader, job: Job, own: list[Pool], places: list[PlaceAnswer]) -> tuple[str, Said]:
    if own:
        return "own", say("server.plan_own", site=own[0].site, gpu=own[0].gpu)
    if not places:
        pays = (job.deadline_s, job.budget_microusd, job.limit_microusd_per_gpu_hour)
        if all(each is None for each in pays):
            return "nothing", say("server.plan_pays_nothing")
        return "nothing", say("server.plan_no_offer", gpus=count("gpu", job.gpus))
    best = places[0]
    where = {"nodes": count("node", best["nodes"]), "where": best["site"]}
    if best["refused"]:
        return "capped", say("server.plan_capped", **where, hourly=Usd(best["microusd_per_hour"]))
    hourly = Usd(best["microusd_per_hour"])
    if (reader.buying or NOTHING).dry_run:
        return "dry_run", say("server.plan_dry_run", **where, hourly=hourly)
    return "order", say("server.plan_order", **where, hourly=hourly)


def _has_room(reader: Reader, job: Job, pool: Pool) -> bool:
    """Roughly: whether enough GPUs that it may use are free there. A bought machine does not count."""
    counted = reader.fleet.capacity.pools[pool]
    fits = job.rate(pool.gpu) > 0 and too_small(job, pool.gpu) is None
    limit = job.limit_microusd_per_gpu_hour
    price = reader.fleet.posted_prices().get(pool, 0)
    allowed = job.may_be_in(site=pool.site, tier=pool.tier) and (limit is None or price <= limit)
    return fits and allowed and pool not in reader.fleet.cloud.offers and counted.free >= job.gpus


def _place(shop: Shop, state: JobState, opening: Opening, *, now_s: int) -> PlaceAnswer:
    offer, weighed = opening.offer, shop.weigh(state, opening)
    is_known = state.job.predicted_work_s is not None and weighed is not None
    ready_s, refused = now_s + offer.lead_s, shop.over_cap(opening)
    hours = weighed.hours if is_known and weighed is not None else None
    return {
        "site": offer.site,
        "provider": offer.provider,
        "gpu": offer.gpu,
        "tier": offer.tier,
        "nodes": opening.nodes,
        "gpus": opening.gpus,
        "microusd_per_hour": opening.microusd_per_hour,
        "ready_s": ready_s,
        "hours": None if hours is None else round(hours, 4),
        "total_microusd": weighed.total if is_known and weighed is not None else None,
        "done_s": None if hours is None else ready_s + round(hours * HOUR_S),
        "chance": None if hours is None else _chance(shop, state.job, offer, hours, ready_s=ready_s),
        "refused": "" if refused is None else told(refused),
        "refused_code": None if refused is None else str(refused.as_dict()["code"]),
    }


def _chance(shop: Shop, job: Job, offer: OfferSeen, hours: float, *, ready_s: int) -> float | None:
    """Probability of finishing by the deadline, if it stays there and restarts after each interruption.

    Interruptions have a constant rate, 1 / expected spot lifetime; each costs a start, a restart and half a
    checkpoint interval. As many as fit into the slack are tolerated: Poisson.
    Leaves out that the scheduler moves it to firm capacity in time: brimful's actual chance is better.
    """
    if job.deadline_s is None:
        return None
    slack_s = job.deadline_s - ready_s - hours * HOUR_S
    if slack_s < 0:
        return 0.0
    if offer.tier != "spot":
        return 1.0
    each_s = max(1.0, offer.lead_s + job.checkpoint_cost_s + (job.checkpoint_interval_s or 0) / 2)
    if job.checkpoint_interval_s is None:
        each_s = max(each_s, hours * HOUR_S)  # it starts from scratch
    expected, most = hours / shop.stay_hours(offer.pool), min(1000, floor(slack_s / each_s))
    term = total = exp(-expected)
    for n in range(1, most + 1):
        term *= expected / n
        total += term
    return round(min(1.0, total), 4)


def check_view(reader: Reader) -> Iterator[ProviderAnswer]:
    """Must not hold the lock: it contacts machines."""
    for provider in reader.providers:
        with reader.locked():
            cloud = reader.fleet.cloud
            offers = [
                offer
                for sizes in cloud.offers.values()
                for offer in sizes.values()
                if offer.provider == provider.name
            ]
            machines = [each for each in cloud.machines.values() if each.offer.provider == provider.name]
            silent = reader.health.problems.get(trouble_with(provider.name))
        wrong = {} if silent is None else {provider.name: silent}
        for site in provider.sites:
            engine = reader.engines.get(site)
            wrong |= engine.complaints() if isinstance(engine, Complains) else {}
        yield {
            "provider": provider.name,
            "sites": list(provider.sites),
            "offers": len(offers),
            "there": sum(offer.is_there for offer in offers),
            "machines": len(machines),
            "problems": {name: told(said) for name, said in {**wrong, **_examined(provider)}.items()},
        }


def _examined(provider: Provider) -> dict[str, Said]:
    try:
        found = provider.examine() if isinstance(provider, Examines) else {}
    except BrimfulError as error:
        return {provider.name: error.said}
    return {name: said for name, said in found.items() if said is not None}
