"""`brimful job`: one job, by its id; and notifications about jobs."""

from __future__ import annotations

import argparse
import re
import sys
import time
from collections.abc import Iterator
from datetime import UTC, datetime

from brimful.cli.commands import NO, Answer, Verb, called, integer
from brimful.cli.fleet.jobs import columns, does, in_phase, ran, waited
from brimful.cli.options import CONSENT, DRY_RUN, FOLLOW, JOB, REASON, agree, arg, usd
from brimful.cli.render import clock, noted_table, paint, table, tell, wrapped
from brimful.client.answers import (
    JobAnswer,
    LeaseAnswer,
    LogAnswer,
    NotificationAnswer,
    PoolAnswer,
    WhyAnswer,
)
from brimful.client.client import Client
from brimful.client.shown import command_line, is_stuck, measured_said
from brimful.errors import BadInput, BrimfulError, NotFound, Refused, WorldFailed
from brimful.language import Number, Quoted, Seconds, Several, Usd, count, either, say, told, verbatim, words
from brimful.language.printable import all_printable, harmless, printable
from brimful.units import spans

PIECE_BYTES = 1 << 20
POLL_S = 0.5
NOTIFY_EXAMPLE = """brimful job notify
brimful job notify add mailto:alice@example.org --on failed --on over_budget
brimful job notify add https://hooks.example.org/brimful --team
brimful job notify remove 4f1c0a9be2d37a55"""
OVER = {"finished", "failed", "stopped", "cancelled", "skipped"}
KINDS = ("finished", "failed", "preempted", "over_budget", "idle", "budget", "audit")


def show(args: argparse.Namespace) -> Answer:
    job = Client().job(args.job)
    return Answer(job, _show_text(all_printable(job)))


def _show_text(job: JobAnswer) -> str:
    budget = job["budget_microusd"]
    types = either(job["gpu_types"]) if job["gpu_types"] else say("fleet.any_type")
    cost = told(Usd(job["cost_microusd"]))
    cost = words("fleet.cost_of", cost=cost, budget=Usd(budget)) if budget else cost
    unbilled = sum(lease["cost_microusd"] for lease in job["leases"]) - job["cost_microusd"]
    gpus: object = f"{told(count('gpu', job['gpus']))}, {told(types)}"
    if job["within"] != "node":
        gpus = say(f"fleet.within_{job['within']}", gpus=count("gpu", job["gpus"]), types=types)
    facts = {
        "what": command_line(job["command"]),
        "folder": job["folder"],
        "asks": f"{told(gpus)}, {job['priority']}",
        "tenant": job["tenant"],
        "submitted": clock(job["submitted_s"]),
        "waited": waited(job),
        "ran": ran(job) or words("fleet.not_yet"),
        "delayed": words("fleet.delay", delay=Seconds(job["delay_s"])),
        "cost": words("fleet.cost_unbilled", cost=cost, more=Usd(unbilled)) if unbilled > 0 else cost,
    }
    if job["leases"]:
        facts["measured"] = _measured(job)
    title = f"{job['job']} ({job['name']})" if job["name"] else job["job"]
    doing = say("fleet.job_is", job=title, phase=in_phase(job["phase"]))
    lines = [*(paint(line, "bold") for line in wrapped("", _with_why(doing, job["why"]))), ""]
    for name, value in facts.items():
        title = words(f"fleet.row_{name}")
        lines += wrapped(f"  {title:<10} ", value) or [f"  {title}"]
    if job["leases"]:
        lines += ["", _leases(job["leases"])]
    return "\n".join(lines)


def _measured(job: JobAnswer) -> str:
    """'3 s ago: step 120, 412 ms · 39,800 tokens/s · MFU 41.2% of 117 TFLOPS bf16 · …'"""
    found = job["measured"]
    if found is None:
        return _with_why(say("fleet.nothing"), job["not_measured"])
    (_, age), *facts = measured_said(found)
    parts = tuple(say(f"fleet.measured_{name}", said=said) for name, said in facts)
    shown = say("fleet.measured", age=age, facts=Several(parts, " · "))
    return words("fleet.measured_idle", said=shown, idle=found["idle"]) if found["idle"] else told(shown)


def _leases(leases: list[LeaseAnswer]) -> str:
    today = f"{datetime.now(UTC).astimezone():%Y-%m-%d} "
    rows = [
        [
            lease["lease"],
            _where(lease),
            clock(lease["started_s"]).removeprefix(today),
            told(Seconds(lease["billed_s"])),
            told(Usd(lease["microusd_per_gpu_hour"])),
            told(Usd(lease["cost_microusd"])),
        ]
        for lease in leases
    ]
    header = columns("lease", "where", "started", "billed", "per_gpu_h", "cost")
    notes = [_with_why(in_phase(lease["phase"]), lease["reason"]) for lease in leases]
    return noted_table(header, rows, notes, right=(3, 4, 5))


def _where(lease: LeaseAnswer) -> str:
    parts = [(lease["node"], lease["gpus"]), *lease["rest"]]
    return ", ".join(f"{node} GPU {spans(gpus)}" for node, gpus in parts)


def _with_why(said: object, why: str) -> str:
    return words("fleet.said_why", said=said, why=why) if why else told(said)


def why(args: argparse.Namespace) -> Answer:
    data = Client().why(args.job)
    return Answer(data, _why_text(all_printable(data)))


def _why_text(why: WhyAnswer) -> str:
    lines = [paint(words("fleet.job_is", job=why["job"], phase=in_phase(why["phase"])), "bold"), ""]
    waiting = why["waiting"]
    if waiting and why["ahead"] is not None:
        waiting = words("fleet.waits_next", waiting=waiting)
        if why["ahead"]:
            waiting = words("fleet.waits_behind", waiting=why["waiting"], jobs=count("job", why["ahead"]))
    ended = why.get("ended")  # not from an older server
    said = {"fleet.row_ended": ended, "fleet.row_waits": waiting, "fleet.row_here": why["here"]}
    said["fleet.row_price"] = why["price"]
    promise = why.get("promise")  # not from an older server
    said["fleet.row_deadline"] = promise["said"] if promise else None
    said["fleet.row_policy"] = why.get("policy") if why["phase"] == "waiting" or why["here"] else None
    labels = {name: words(name) for name, text in said.items() if text}
    wide = max(8, *map(len, labels.values()), 0)
    for name, label in labels.items():
        lines += wrapped(f"  {label:<{wide}} ", said[name])
    if not why["pools"]:
        over = wrapped("  ", say("fleet.job_over", job=why["job"], brimful=called()))
        lines += ["", *over] if labels else over
    else:
        lines += ["", _pools(why["pools"])]
    return "\n".join(lines)


def _pools(pools: list[PoolAnswer]) -> str:
    rows = [
        [
            pool["site"],
            pool["gpu"],
            words("fleet.free_of", free=pool["free"], gpus=pool["gpus"]),
            told(Usd(pool["microusd_per_gpu_hour"])),
            told(Number(pool["rate"], 2)) if pool["rate"] else "",
            "" if pool["microusd_per_work_hour"] is None else told(Usd(pool["microusd_per_work_hour"])),
        ]
        for pool in pools
    ]
    header = columns("site", "GPU", "free", "per_gpu_hour", "speed", "per_work_hour")
    return noted_table(header, rows, [pool["verdict"] for pool in pools], right=(2, 3, 4, 5))


def logs(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.follow and not args.json:
        final = follow(client, args.job, rank=args.rank)
        tell(f"{args.job} {told(in_phase(final['phase']))}", aside=True)
        return Answer(None, "")
    read = _until_over if args.follow else _until_now
    pieces = list(read(client, args.job, args.rank))
    text, phase = "".join(piece["text"] for piece in pieces), pieces[-1]["phase"]
    data = {"job": args.job, "phase": phase, "text": text}
    nothing = words("fleet.printed_nothing", job=args.job, verb=does(phase), brimful=called())
    return Answer(data, shown_log(text).removesuffix("\n") or nothing, raw=bool(text))


def shown_log(text: str) -> str:
    """To a terminal only harmless characters; to a file or a pipe unchanged."""
    return harmless(text) if sys.stdout.isatty() else text


def follow(client: Client, job: str, *, quiet: bool = False, rank: int = 0) -> JobAnswer:
    """Print the log as it grows until the job is over; return the job as it ended.

    Why it waits goes to stderr: a pipe should get only the log.
    """
    shown = ""
    try:
        for piece in _until_over(client, job, rank):
            if not quiet and piece["text"]:
                sys.stdout.write(shown_log(piece["text"]))
                sys.stdout.flush()
            elif not quiet and piece["phase"] != shown:
                shown = _tell(client, job)
    except KeyboardInterrupt:
        tell(f"\n{words('fleet.goes_on', job=job, brimful=called())}", aside=True)
        raise
    return client.job(job)


def _tell(client: Client, job: str) -> str:
    """Say once what it is doing while there is no output."""
    now = client.job(job)
    if now["phase"] == "waiting" and not now["why"]:
        return ""
    if now["phase"] in ("waiting", "starting", "running"):
        why = printable(now["why"])
        said = say("fleet.job_doing", job=job, phase=in_phase(now["phase"]))
        if why:
            said = say("fleet.job_doing_why", job=job, phase=in_phase(now["phase"]), why=why)
        tell(told(said), aside=True)
    if is_stuck(now):
        tell(words("fleet.may_never_start", job=job, brimful=called()), aside=True)
    return now["phase"]


def _until_over(client: Client, job: str, rank: int = 0) -> Iterator[LogAnswer]:
    """Pieces of the log as it grows, from the newest lease on, until no more will come."""
    # The offset belongs to the lease, and a requeued job gets a new one.
    lease: str | None = None
    offset = 0
    while True:
        piece = client.log(job, lease=lease, rank=rank, offset=offset, limit=PIECE_BYTES)
        yield piece
        is_new = (piece["lease"], piece["next_offset"]) != (lease, offset)
        lease, offset = piece["lease"], piece["next_offset"]
        if piece["over"] and offset >= piece["size"]:
            return
        if not is_new:
            time.sleep(POLL_S)


def _until_now(client: Client, job: str, rank: int = 0) -> Iterator[LogAnswer]:
    """Pieces of the newest lease's log up to its current size: a job that prints fast never ends."""
    piece = client.log(job, rank=rank, limit=PIECE_BYTES)
    lease, size = piece["lease"], piece["size"]
    while True:
        yield piece
        offset = piece["next_offset"]
        if offset >= size or not piece["text"]:
            return
        limit = min(PIECE_BYTES, max(size - offset, 4))
        piece = client.log(job, lease=lease, rank=rank, offset=offset, limit=limit)
        if piece["lease"] != lease:
            return


def cancel(args: argparse.Namespace) -> Answer:
    client = Client()
    if len(args.jobs) == 1:
        return _cancel(client, args.jobs[0], dry_run=args.dry_run)
    answers = [_one_of_several(client, name, dry_run=args.dry_run) for name in dict.fromkeys(args.jobs)]
    return Answer(
        [each.data for each in answers],
        "\n".join(each.text for each in answers),
        max(each.exit_code for each in answers),
    )


def _one_of_several(client: Client, name: str, *, dry_run: bool) -> Answer:
    """An error with one does not stop the others."""
    try:
        return _cancel(client, name, dry_run=dry_run)
    except WorldFailed:
        raise
    except BrimfulError as error:
        return Answer({"job": name, "error": error.as_dict(told)}, f"{name}: {told(error.said)}", NO)


def _cancel(client: Client, name: str, *, dry_run: bool) -> Answer:
    if dry_run:
        job, tasks = _unfinished(client, name)
        if tasks:
            return Answer(job, words("fleet.would_cancel_tasks", job=name, tasks=tasks))
        return Answer(job, words("fleet.would_cancel", job=name, verb=does(job["phase"])))
    job = client.cancel(name)
    is_over = job["phase"] == "cancelled"
    return Answer(job, words("fleet.job_cancelled" if is_over else "fleet.being_stopped", job=name))


def _unfinished(client: Client, name: str) -> tuple[JobAnswer, int]:
    """The job, and of an array how many tasks are not over; refused in the server's words if all is over."""
    try:
        job, tasks = client.job(name), None
    except NotFound as error:
        if error.code != "is_array":
            raise
        (job,) = client.jobs(array=name, fold=True, limit=1)
        tasks = job["array_tasks"]
    going = sum(n for phase, n in tasks["phases"].items() if phase not in OVER) if tasks else 0
    if going or (tasks is None and job["ended_s"] is None):
        return job, going
    verb = does("ended" if tasks else job["phase"])
    raise Refused(say("server.job_already", name=name, verb=verb))


def hold(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.dry_run:
        job, tasks = _unfinished(client, args.job)
        if tasks:
            return Answer(job, words("fleet.would_hold_tasks", job=args.job, tasks=tasks))
        code = "fleet.would_stop_and_hold" if job["node"] else "fleet.would_hold"
        return Answer(job, words(code, job=args.job, verb=does(job["phase"])))
    job = client.hold(args.job, args.reason)
    is_held = job["phase"] == "held"
    text = words("fleet.is_on_hold" if is_held else "fleet.stopped_then_held", job=args.job)
    return Answer(job, f"{text}\n\n  {called()} job release {args.job}")


def release(args: argparse.Namespace) -> Answer:
    job = Client().release(args.job)
    return Answer(job, words("fleet.job_is", job=args.job, phase=in_phase(job["phase"])))


def move(args: argparse.Namespace) -> Answer:
    client = Client()
    site = "" if args.to == "any" else args.to
    before = _unfinished(client, args.job)[0] if args.dry_run else client.job(args.job)
    leaves = printable(before["site"]) if site and before["site"] and before["site"] != site else ""
    if args.dry_run:
        facts = {"job": args.job, "verb": does(before["phase"]), "site": args.to}
        if leaves:
            return Answer(before, words("fleet.would_move", here=leaves, **facts))
        return Answer(before, words("fleet.would_start_at", **facts))
    job = client.move(args.job, site)
    where = say("fleet.at_site_only", site=args.to) if site else say("fleet.anywhere")
    if leaves:
        return Answer(job, words("fleet.moves_on", job=args.job, here=leaves, where=where))
    return Answer(job, words("fleet.runs_next", job=args.job, where=where))


def _add_bid(parser: argparse.ArgumentParser) -> None:
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--limit", metavar="USD")
    which.add_argument("--class", dest="preset", action="store_true")


def bid(args: argparse.Namespace) -> Answer:
    limit = None if args.limit is None else usd(args.limit, "--limit")
    client = Client()
    job = client.job(args.job)
    if limit is None and not args.preset:
        return Answer(job, _bid_text(job))
    sentence = _bid_sentence(job, limit)
    if args.dry_run:
        return Answer(job, words("fleet.unchanged", said=sentence))
    before = job["limit_microusd_per_gpu_hour"]
    if limit is None or before is None or limit > before:
        agree(sentence, yes=args.yes)
    return Answer(client.bid(args.job, limit), sentence)


def _bid_sentence(job: JobAnswer, limit: int | None) -> str:
    name, gpus = job["job"], count("gpu", job["gpus"])
    if limit is None:
        return words("fleet.bids_class", job=name, priority=job["priority"], gpus=gpus)
    return words("fleet.bids_limit", job=name, limit=Usd(limit), gpus=gpus, hourly=Usd(limit * job["gpus"]))


def _bid_text(job: JobAnswer) -> str:
    limit = job["limit_microusd_per_gpu_hour"]
    lease = job["leases"][-1] if job["leases"] and job["leases"][-1]["ended_s"] is None else None
    lines = [_bid_sentence(job, limit), words("fleet.it_is", verb=does(job["phase"]))]
    if lease:
        lines.append(words("fleet.pays_now", price=Usd(lease["microusd_per_gpu_hour"])))
    return "\n  ".join([*lines, *filter(None, [job["why"]])])


def _add_notify(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("verb", nargs="?", choices=("list", "add", "remove"), default="list")
    parser.add_argument("target", nargs="?", metavar="TARGET")
    parser.add_argument("--on", action="append", default=[], choices=KINDS, metavar="EVENT")
    parser.add_argument("--team", action="store_true")


def notify(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.verb == "list":
        found = client.notifications()
        return Answer(found, _rules_table(all_printable(found["notifications"])))
    if args.target is None:
        hint = verbatim(NOTIFY_EXAMPLE.splitlines()[1 if args.verb == "add" else 3])
        raise BadInput(say("fleet.notify_needs_target", verb=args.verb), hint=hint)
    if args.verb == "remove":
        if re.fullmatch("[0-9a-f]{16}", args.target) is None:
            raise BadInput(say("fleet.bad_rule_id", text=Quoted(args.target[:40])))
        gone = client.remove_notification(args.target)
        return Answer(gone, words("fleet.notify_removed", rule=gone["notification"]))
    made = client.add_notification(args.target, on=args.on, team=args.team)
    rule = all_printable(made["notification"])
    text = words("fleet.notify_added", rule=rule["notification"], on=", ".join(rule["on"]))
    if not rule["target"].startswith("mailto:"):
        text += f"\n{words('fleet.notify_secret', secret=made['secret'])}"
    return Answer(made, text)


def _rules_table(rules: list[NotificationAnswer]) -> str:
    if not rules:
        return words("fleet.notify_none")
    rows = [
        [
            *(rule["notification"], rule["tenant"] if rule["team"] else words("fleet.notify_mine")),
            *(", ".join(rule["on"]), str(rule["waiting"]), str(rule["dead"]), rule["target"]),
        ]
        for rule in rules
    ]
    names = ("rule", "whose", "on", "waiting", "dead", "target")
    return table([words(f"fleet.notify_col_{name}") for name in names], rows, right=(3, 4))


VERBS = {
    "show": Verb("brimful job show job-1", (JOB,), show),
    "why": Verb("brimful job why job-1", (JOB,), why),
    "logs": Verb(
        "brimful job logs job-1\nbrimful job logs -f job-1\nbrimful job logs --rank 3 job-1",
        (JOB, FOLLOW, arg("--rank", type=integer, default=0, metavar="N")),
        logs,
    ),
    "cancel": Verb(
        "brimful job cancel job-1\nbrimful job cancel job-2 job-3",
        (arg("jobs", metavar="JOB", nargs="+"), DRY_RUN),
        cancel,
    ),
    "hold": Verb(
        'brimful job hold job-7\nbrimful job hold job-7 --reason "the data set is being fixed"',
        (JOB, REASON, DRY_RUN),
        hold,
    ),
    "release": Verb("brimful job release job-7", (JOB,), release),
    "move": Verb(
        "brimful job move job-7 --to west\nbrimful job move job-7 --to any",
        (JOB, arg("--to", required=True, metavar="SITE"), DRY_RUN),
        move,
    ),
    "bid": Verb(
        "brimful job bid job-7\nbrimful job bid job-7 --limit 2.40 --yes\n"
        "brimful job bid job-7 --class --yes",
        (JOB, _add_bid, CONSENT, DRY_RUN),
        bid,
    ),
    "notify": Verb(NOTIFY_EXAMPLE, (_add_notify,), notify),
}
