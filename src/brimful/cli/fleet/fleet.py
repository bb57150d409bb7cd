"""`brimful fleet`: nodes, GPUs, who holds them, who waits, and what has happened."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from brimful.cli.commands import Answer, Verb, called, integer
from brimful.cli.fleet.jobs import columns
from brimful.cli.options import DRY_RUN, FOLLOW, REASON, arg
from brimful.cli.render import clock, day, noted_table, paint, table, tell, wrapped
from brimful.client.answers import EventAnswer, FleetAnswer, GpuAnswer, NodeAnswer
from brimful.client.client import Client
from brimful.client.queue_answers import QueueAnswer, QueueCheckAnswer, QueueSettings
from brimful.client.queues import read_queues
from brimful.errors import BadInput
from brimful.language import Number, Percent, Quoted, Seconds, Usd, count, say, told, words
from brimful.language.printable import all_printable, printable
from brimful.language.record import said_in
from brimful.market.pools import decided_by_bids
from brimful.units import HOUR_S

# Fields shown for an event, in this order.
SAID = ("job", "lease", "node", "site", "sites", "gpus", "exit_code", "reason", "why")


def show(args: argparse.Namespace) -> Answer:  # noqa: ARG001
    data = Client().fleet()
    fleet = all_printable(data)
    rows = [
        [
            node["node"],
            str(gpu["index"]),
            _type(node),
            gpu["job"] or _state(node, gpu),
            words("fleet.per_h", price=Usd(node["microusd_per_gpu_hour"])),
            words("fleet.unknown") if gpu["mfu"] is None else told(Percent(gpu["mfu"])),
        ]
        for node in fleet["nodes"]
        for gpu in node["gpus"]
    ]
    lines = [words("fleet.gpus_free", **{name: fleet[name] for name in ("free", "gpus", "policy")})]
    if pools := fleet.get("market"):  # older servers do not send it
        lines += wrapped("", decided_by_bids(pools))
    lines.append("")
    lines.append(table(columns("node", "GPU", "type", "held_by", "price", "MFU"), rows, right=(1, 4)))
    lines += _problems(fleet)
    if fleet["trouble"]:
        lines += ["", words("fleet.scheduler_trouble", trouble=fleet["trouble"])]
    return Answer(data, "\n".join(lines))


def _problems(fleet: FleetAnswer) -> list[str]:
    """By site, with the nodes that it does not offer, and why."""
    said = [words("fleet.site_problem", site=site, problem=why) for site, why in fleet["problems"].items()]
    return [line for each in said for line in ("", *wrapped("", each))]


def _state(node: NodeAnswer, gpu: GpuAnswer) -> str:
    if gpu["held"]:
        users = node.get("others")  # an older server does not send it
        return words("fleet.gpu_held_by", users=", ".join(users)) if users else words("fleet.gpu_held")
    if gpu["bad"]:
        return words("fleet.gpu_bad")
    return words("fleet.gpu_free") if node["drained"] is None else words("fleet.drained")


def _type(node: NodeAnswer) -> str:
    return words("fleet.declared", gpu=node["gpu"]) if node["declared"] else node["gpu"]


def _add_nodes(parser: argparse.ArgumentParser) -> None:
    # All of this for the old `nodes drain NODE` and `nodes resume NODE` (OLD in commands.py).
    hidden = argparse.SUPPRESS
    parser.add_argument("verb", nargs="?", choices=("list", "drain", "resume"), default="list", help=hidden)
    parser.add_argument("node", nargs="?", metavar="NODE", help=hidden)
    parser.add_argument("--reason", default="", help=hidden)
    parser.add_argument("--dry-run", action="store_true", help=hidden)


def nodes(args: argparse.Namespace) -> Answer:
    if args.verb == "list":
        fleet = Client().fleet()
        shown = all_printable(fleet)
        return Answer(fleet["nodes"], "\n".join([_nodes_text(shown["nodes"]), *_problems(shown)]))
    if args.node is None:
        raise BadInput(say("fleet.which_node", verb=args.verb))
    return drain(args) if args.verb == "drain" else resume(args)


def _nodes_text(nodes: list[NodeAnswer]) -> str:
    if not nodes:
        return words("fleet.no_nodes_yet")
    rows = [
        [
            node["node"],
            node["site"],
            f"{len(node['gpus'])} x {_type(node)}",
            str(sum(gpu["held"] for gpu in node["gpus"])),
            told(Usd(node["microusd_per_gpu_hour"])),
        ]
        for node in nodes
    ]
    reasons = [node["drained"] for node in nodes]
    notes = ["" if why is None else words("fleet.node_drained", reason=why) for why in reasons]
    drained = sum(node["drained"] is not None for node in nodes)
    feet = [words("fleet.nodes_drained", nodes=count("node", drained))] if drained else []
    feet.append("\n".join(wrapped("", words("fleet.nodes_hint", brimful=called()))))
    header = columns("node", "site", "gpus", "held", "per_gpu_h")
    return "\n\n".join([noted_table(header, rows, notes, right=(3, 4)), *feet])


def drain(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.dry_run:
        return _dry_run(client, args.node, "drain")
    done = client.drain(args.node, args.reason)
    running = ", ".join(done["running"])
    node = printable(args.node)
    if not running:
        return Answer(done, words("fleet.drain_empty", node=node))
    return Answer(done, words("fleet.drain_running", node=node, jobs=running))


def resume(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.dry_run:
        return _dry_run(client, args.node, "resume")
    return Answer(client.resume(args.node), words("fleet.takes_work_again", node=printable(args.node)))


def _dry_run(client: Client, name: str, verb: str) -> Answer:
    node = next((each for each in client.fleet()["nodes"] if each["node"] == name), None)
    if node is None:
        raise BadInput(say("fleet.no_node", name=Quoted(name[:100])))
    held = count("gpu", sum(gpu["held"] for gpu in node["gpus"]))
    return Answer(node, words(f"fleet.would_{verb}", node=printable(name), held=held))


def queues(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.set and args.dry_run:
        asked = read_queues(Path(args.set))
        idle = _notes_on(client.check_queues(asked))
        text = words("fleet.would_set_queues", queues=count("queue", len(asked)))
        return Answer({"queues": asked}, "\n\n".join([text, *idle]))
    queues = client.set_queues(read_queues(Path(args.set))) if args.set else client.queues()
    if not queues:
        return Answer({"queues": queues}, words("fleet.no_queue_yet"))
    rows = [
        [
            queue["queue"],
            str(queue["running"]),
            str(queue["held_gpus"]),
            "" if queue["quota_gpus"] is None else str(queue["quota_gpus"]),
            str(queue["waiting"]),
            str(queue["waiting_gpus"]),
            "" if queue["oldest_wait_s"] is None else told(Seconds(queue["oldest_wait_s"])),
            str(queue["on_hold"]),
            told(Number(queue["recent_gpu_s"] / HOUR_S, 1)),
        ]
        for queue in all_printable(queues)
    ]
    names = ("queue", "running", "gpus", "quota", "waiting", "wants", "longest", "on_hold", "gpu_h")
    notes = [_queue_note(queue["set"]) for queue in all_printable(queues)]
    lines = [noted_table(columns(*names), rows, notes, right=range(1, 9)), ""]
    lines += wrapped("", words("fleet.queue_legend"))
    for said in _notes_on(queues):
        lines += ["", said]
    return Answer({"queues": queues}, "\n".join(lines))


def _notes_on(queues: Sequence[QueueAnswer | QueueCheckAnswer]) -> list[str]:
    """What the fleet has too little of, and settings that the current policy ignores, if any."""
    notes = [note for queue in queues for note in queue.get("notes", ())]  # an older server has none
    names = sorted({name for queue in queues for name in queue.get("without_effect", ())})
    if names:
        notes.append(words("fleet.queue_without_effect", names=", ".join(names)))
    return ["\n".join(wrapped("", printable(note))) for note in dict.fromkeys(notes)]


def _queue_note(given: QueueSettings | None) -> str:
    """A queue's settings that differ from the default."""
    if given is None:
        return ""
    said = []
    if given["borrow_gpus"] is not None:
        code = "fleet.queue_borrows" if given["borrow_gpus"] else "fleet.queue_borrows_nothing"
        said.append(words(code, gpus=given["borrow_gpus"]))
    if not given["lend"]:
        said.append(words("fleet.queue_lends_nothing"))
    if given["weight"] != 1:
        said.append(words("fleet.queue_weight", weight=Number(given["weight"], 1)))
    if given["parent"]:
        said.append(words("fleet.queue_parent", parent=given["parent"]))
    if given["user_gpus"] is not None:
        said.append(words("fleet.queue_user_gpus", gpus=given["user_gpus"]))
    said += [words("fleet.queue_type_gpus", gpus=n, gpu=gpu) for gpu, n in given["type_gpus"].items()]
    if given["top_priority"] != "urgent":
        said.append(words("fleet.queue_top_priority", priority=given["top_priority"]))
    if given["tenants"]:
        said.append(words("fleet.queue_tenants", tenants=", ".join(given["tenants"])))
    return "; ".join(said)


def events(args: argparse.Namespace) -> Answer:
    client = Client()
    if args.follow:
        last = ""
        for _, event in client.event_stream(after=-args.last):
            tell(json.dumps(event) if args.json else "\n".join(_event_lines(event, after=last)))
            last = day(event["at_s"])
        return Answer(None, "")
    data = client.events(after=-args.last, limit=min(args.last, 1000))
    found = data["events"]
    days = ["", *(day(event["at_s"]) for event in found)]
    lines = [
        line for last, event in zip(days, found, strict=False) for line in _event_lines(event, after=last)
    ]
    return Answer(data, "\n".join(lines) or words("fleet.nothing_happened"))


def _event_lines(event: EventAnswer, *, after: str) -> list[str]:
    """The event, under a date line if its day differs from the previous one's."""
    body = all_printable(event["body"])
    if isinstance(body.get("job"), dict):
        body = body["job"]
    # A lease's name starts with its job's.
    said = [name for name in SAID if name != "job" or "lease" not in body]
    parts = [f"{name} {_value(body[name])}" for name in said if body.get(name) not in (None, "", [])]
    today, _, hour = clock(event["at_s"]).partition(" ")
    head = f"{hour}  {event['seq']:>6}  {event['kind']:<15}  "
    lines = [] if today == after else [paint(today, "bold")]
    return lines + (wrapped(head, ", ".join(parts)) or [head.rstrip()])


def _value(value: object) -> str:
    if isinstance(value, dict):
        return told(said_in(value))
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


SET = arg("--set", metavar="FILE")
NODE, LAST = arg("node", metavar="NODE"), arg("--last", type=integer, default=50, metavar="N")
VERBS = {
    "show": Verb("brimful fleet", (), show),
    "nodes": Verb("brimful fleet nodes", (_add_nodes,), nodes),
    "drain": Verb('brimful fleet drain local-0 --reason "new fans"', (NODE, DRY_RUN, REASON), drain),
    "resume": Verb("brimful fleet resume local-0", (NODE, DRY_RUN), resume),
    "queues": Verb("brimful fleet queues\nbrimful fleet queues --set queues.toml", (SET, DRY_RUN), queues),
    "events": Verb("brimful fleet events --last 20\nbrimful fleet events -f", (LAST, FOLLOW), events),
}
