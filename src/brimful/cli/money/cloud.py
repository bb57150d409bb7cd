"""`brimful cloud`: machines that are for sale, that were bought, and that would be bought for a job."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from brimful.cli.commands import NO, Answer, Verb
from brimful.cli.options import arg
from brimful.cli.render import clock, table
from brimful.client.client import Client
from brimful.language import Number, Percent, Sentence, Usd, count, say, told, words
from brimful.language.printable import all_printable

SHOWN = 20  # offers shown to a person


def _header(*names: str) -> list[str]:
    return [words(f"money.col_{name}") for name in names]


def show(args: argparse.Namespace) -> Answer:
    del args
    found = all_printable(Client().cloud())
    if not found["is_buying"]:
        return Answer(found, words("money.cloud_nobody_sells"))
    caps = {
        "hourly": Usd(found["hourly_microusd"]),
        "hourly_cap": Usd(found["hourly_cap_microusd"]),
        "month": Usd(found["month_microusd"]),
        "month_cap": Usd(found["monthly_cap_microusd"]),
    }
    lines = [words("money.cloud_caps", **caps)]
    if found["dry_run"]:
        lines.append(words("money.cloud_dry_run"))
    if not (found["hourly_cap_microusd"] and found["monthly_cap_microusd"]):
        lines.append(words("money.cloud_caps_zero"))
    rows = [
        (
            each["node"],
            each["tier"],
            f"{each['gpus']} x {each['gpu']}",
            words(f"money.machine_{each['state']}"),
            ", ".join(each["jobs"]) or "-",
            words("money.per_hour", price=Usd(each["microusd_per_hour"])),
            told(Usd(each["cost_microusd"])),
        )
        for each in found["machines"]
    ]
    header = _header("node", "tier", "gpus", "state", "job", "price", "cost")
    lines += ["", table(header, rows, right=(5, 6)) if rows else words("money.cloud_none")]
    lines += [f"{name}: {why}" for name, why in found["problems"].items()]
    return Answer(found, "\n".join(lines))


def offers(args: argparse.Namespace) -> Answer:
    found = all_printable(Client().cloud_offers())
    chosen = [each for each in found if not args.gpu or each["gpu"] in args.gpu]
    rows = [
        (
            each["site"],
            each["tier"],
            f"{each['gpus']} x {each['gpu']}",
            words("money.per_hour", price=Usd(each["microusd_per_gpu_hour"])),
            words("money.per_hour", price=Usd(each["microusd_per_hour"])),
            "-" if each["stays_hours"] is None else told(Number(each["stays_hours"], 1)),
            words("money.offer_there" if each["is_there"] else "money.offer_not_there"),
        )
        for each in chosen[:SHOWN]
    ]
    if not rows:
        return Answer({"offers": chosen}, words("money.cloud_no_offers"))
    header = _header("site", "tier", "gpus", "per_gpu", "price", "stays_hours", "state")
    more = len(chosen) - SHOWN
    text = table(header, rows, right=(3, 4, 5)) + (f"\n{words('money.more', n=more)}" if more > 0 else "")
    return Answer({"offers": chosen}, text)


def plan(args: argparse.Namespace) -> Answer:
    from brimful.server.jobfiles.jobfile import read_job_file

    client, file = Client(), read_job_file(Path(args.file))
    body: dict[str, Any] = {**file.body}
    if file.fit:
        from brimful.cli.fleet.estimates import estimates_for

        types = sorted({each["gpu"] for each in client.cloud_offers()})
        body["predicted"] = estimates_for(file.fit, types, gpus=body.get("gpus", 1), other_bytes=0).predicted
        body |= {} if file.steps is None else {"steps": file.steps}
    found = all_printable(client.cloud_plan(body))
    rows = [
        (
            each["site"],
            each["tier"],
            f"{each['nodes']} x {each['gpus'] // each['nodes']} x {each['gpu']}",
            words("money.per_hour", price=Usd(each["microusd_per_hour"])),
            "-" if each["total_microusd"] is None else told(Usd(each["total_microusd"])),
            "-" if each["done_s"] is None else clock(each["done_s"]),
            "-" if each["chance"] is None else told(Percent(each["chance"])),
        )
        for each in found["places"][:SHOWN]
    ]
    text = found["said"]
    if rows:
        header = _header("site", "tier", "gpus", "price", "total", "done", "in_time")
        text += "\n\n" + table(header, rows, right=(3, 4, 6))
        refusals = dict.fromkeys(each["refused"] for each in found["places"][:SHOWN] if each["refused"])
        text += "".join(f"\n{line}" for line in refusals)
    return Answer(found, text, 0 if found["verdict"] in ("order", "own", "dry_run") else NO)


def check(args: argparse.Namespace) -> Answer:
    del args
    found = all_printable(Client().cloud_check())
    if not found:
        return Answer({"providers": []}, words("money.cloud_nobody_sells"), NO)
    lines: list[str] = []
    for each in found:
        state: Sentence = say(
            "money.provider_well" if not each["problems"] else "money.provider_unwell",
            provider=each["provider"],
            offers=each["offers"],
            there=each["there"],
            machines=count("node", each["machines"]),
        )
        lines += [told(state), *(f"  {name}: {why}" for name, why in each["problems"].items())]
    is_well = not any(each["problems"] for each in found)
    return Answer({"providers": found}, "\n".join(lines), 0 if is_well else NO)


VERBS = {
    "show": Verb("brimful cloud show", (), show),
    "offers": Verb("brimful cloud offers --gpu t4", (arg("--gpu", action="append", metavar="TYPE"),), offers),
    "plan": Verb("brimful cloud plan job.yaml", (arg("file", metavar="JOBFILE"),), plan),
    "check": Verb("brimful cloud check", (), check),
}
