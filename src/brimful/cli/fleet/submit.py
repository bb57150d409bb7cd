"""`brimful submit`: submit a command, or a job file."""

from __future__ import annotations

import argparse
import os
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from brimful.adapters.engines.devices import catalog_names
from brimful.adapters.engines.job_users.isolation import PRIVATE
from brimful.cli.commands import NO, Answer, called, integer
from brimful.cli.fleet.job import follow
from brimful.cli.fleet.jobs import in_phase
from brimful.cli.options import DRY_RUN, FOLLOW, usd
from brimful.cli.render import clock, paragraph, wrapped
from brimful.client.answers import JobAnswer
from brimful.client.client import Client, check_key
from brimful.client.shown import command_line, is_stuck
from brimful.errors import BadInput, WorldFailed
from brimful.fleet.arrays import after_from, tasks_from
from brimful.fleet.elastic.written import range_from, scaling_from
from brimful.fleet.job import PRIORITIES, SHELL_ENV
from brimful.language import (
    Quoted,
    Seconds,
    Sentence,
    Several,
    Size,
    Usd,
    count,
    either,
    say,
    told,
    verbatim,
    words,
)
from brimful.language.printable import all_printable, printable

EXAMPLE = """brimful submit -- python examples/train_tiny.py
brimful submit --gpus 2 --priority background --budget 1.50 --follow -- python train.py --lr 3e-4
brimful submit examples/jobs/brimful.yaml --dry-run
brimful submit examples/jobs/train.sbatch --dry-run"""

TAKES_COMMAND = True
SHOWN_LEFT_OUT = 3
MOST_POOLS = 3  # in a note
LOOKS = 20  # 0.1 s apart


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "brimful submit [options] [FILE | -- COMMAND [ARG ...]]"
    parser.add_argument("file", nargs="?", metavar="FILE")
    parser.add_argument("--gpus", type=_gpus, metavar="N")
    parser.add_argument("--scaling", type=scaling_from, metavar="GPUS:FACTOR,…")
    parser.add_argument("--gpu", action="append", default=[], metavar="TYPE")
    parser.add_argument("--site", action="append", default=[])
    parser.add_argument("--name")
    parser.add_argument("--priority", choices=list(PRIORITIES))
    parser.add_argument("--tenant")
    parser.add_argument("--project")
    parser.add_argument("--queue")
    parser.add_argument("--budget", metavar="USD")
    parser.add_argument("--limit", metavar="USD")
    parser.add_argument("--array", metavar="INDICES")
    parser.add_argument("--after", action="append", default=[], metavar="JOB[:ok|any]")
    parser.add_argument("--retries", type=partial(integer, least=0), metavar="N")
    parser.add_argument("--deadline", metavar="TIME")
    parser.add_argument("--by", metavar="TIME")
    parser.add_argument("--off-peak", action="store_true")
    parser.add_argument("--max-run", metavar="TIME")
    parser.add_argument("--no-pack", action="store_true")
    parser.add_argument("--fit", metavar="CONFIG")
    parser.add_argument("--headless", action="store_true")
    parser.add_argument("--env", action="append", default=[], metavar="NAME=VALUE")
    parser.add_argument("--without-unsupported", action="store_true")
    parser.add_argument("--key", default="")
    FOLLOW(parser)
    DRY_RUN(parser)


def _gpus(text: str) -> int | str:
    """A number, or a range."""
    if ".." not in text:
        return integer(text)
    range_from(text)
    return text


def run(args: argparse.Namespace) -> Answer:
    check_key(args.key)
    body, notes, config, steps = _asked(args)
    if args.follow and body.get("array"):
        tasks = len(tasks_from(body["array"]).indices)
        raise BadInput(say("fleet.follow_array", array=body["array"], tasks=tasks))
    needs_fleet = config and not body.get("gpu_types")
    client = Client() if needs_fleet or not args.dry_run else None
    if config:
        types = body.get("gpu_types") or sorted({n["gpu"] for n in client.fleet()["nodes"]} if client else ())
        notes += _attach_estimates(body, config, types, steps, headless=args.headless)
    if not args.no_pack:
        notes.append(_pack(client if not args.dry_run else None, body))
    elif any(Path(body["folder"]).is_relative_to(private) for private in PRIVATE):
        notes.append(say("fleet.folder_is_private", folder=body["folder"]))
    if args.dry_run or client is None:
        with suppress(ModuleNotFoundError):  # only with the server's packages can this be checked beforehand
            from brimful.server.api.requests import Submission

            Submission.check(body, now_s=int(time.time()))
        notes += _check_there(body)
        shown = {**body, "env": dict.fromkeys(body["env"], "…")}
        data = {"job": shown, "notes": [*map(told, notes)], "note_codes": [note.as_dict() for note in notes]}
        return Answer(data, _dry_text(shown, notes))
    command, folder = body.pop("command"), body.pop("folder")
    job = client.submit(command, folder=folder, key=args.key, **body)
    if args.follow:
        final = follow(client, job["job"], quiet=args.json)
        text = words("fleet.over_at_cost", said=_doing(final), cost=Usd(final["cost_microusd"]))
        return Answer(final, text, 0 if final["phase"] == "finished" else NO)
    job = _after_a_look(client, job)
    if job["array_tasks"] is not None:
        array, tasks = job["array"], job["array_tasks"]["tasks"]
        text = words("fleet.array_submitted", array=array, tasks=tasks) + _said(notes)
        return Answer(job, f"{text}\n\n  {called()} jobs --array {array}\n  {called()} job cancel {array}")
    if is_stuck(job):
        notes = [*notes, say("fleet.may_never_start", job=job["job"], brimful=called())]
    if promise := job.get("promise"):  # not from an older server
        notes = [*notes, verbatim(promise["said"])]
    said = _said(notes)
    then = f"  {called()} job logs -f {job['job']}\n  {called()} job show {job['job']}"
    return Answer(job, f"{told(_doing(job))}{said}\n\n{then}")


def _check_there(body: dict[str, Any]) -> list[Sentence]:
    """Only the server knows queues, budgets, sites and other jobs. It is sent no value of the environment."""
    try:
        pools = Client().check_job({**body, "env": dict.fromkeys(body["env"], "")})["pools"]
    except WorldFailed as error:
        if error.code != "no_server":
            raise
        return [say("fleet.not_checked_there")]
    if not pools or any(pool["can"] for pool in pools):
        return []
    why = (f"{each['site']} {each['gpu']} ({each['verdict']})" for each in pools[:MOST_POOLS])
    return [say("fleet.could_not_start", pools=", ".join(why))]


def _pack(client: Client | None, body: dict[str, Any]) -> Sentence:
    """Send the folder, so that the job runs its current contents; without a client only describe it."""
    from brimful.client.pack import packed

    with packed(Path(body["folder"])) as pack:
        body["code"] = pack.code
        if client is not None:
            client.keep_code(pack, tenant=body.get("tenant"))
        facts = {"files": count("file", pack.files), "size": Size(pack.files_bytes), "folder": body["folder"]}
        if not pack.files:
            return say("fleet.packed_nothing", folder=body["folder"])
        if not pack.left_out:
            return say("fleet.packed", **facts)
        some = ", ".join(pack.left_out[:SHOWN_LEFT_OUT])
        return say("fleet.packed_without", **facts, n=len(pack.left_out), some=some)


def _said(notes: list[Sentence]) -> str:
    lines = [paragraph(words("fleet.note", note=printable(told(note))), "  ", "    ") for note in notes]
    return "".join(f"\n{line}" for line in lines)


def _doing(job: JobAnswer) -> Sentence:
    phase = say("fleet.submitted_waiting") if job["phase"] == "waiting" else in_phase(job["phase"])
    if not job["why"]:
        return say("fleet.job_doing", job=job["job"], phase=phase)
    return say("fleet.job_doing_why", job=job["job"], phase=phase, why=printable(job["why"]))


def _after_a_look(client: Client, job: JobAnswer) -> JobAnswer:
    """The job after the scheduler has looked at it: one that can never start should say so at once."""
    for _ in range(LOOKS):
        job = client.job(job["job"])
        if job["phase"] != "waiting" or job["why"] or job["array"]:
            break
        time.sleep(0.1)
    return job


def _asked(args: argparse.Namespace) -> tuple[dict[str, Any], list[Sentence], str, int | None]:
    """The submission, notes about it, and the config it names. Flags override the file."""
    body: dict[str, Any] = {"env": {}}
    notes: list[Sentence] = []
    config, steps = args.fit or "", None
    if args.file is not None and args.command:
        raise BadInput(say("fleet.file_and_command"))
    if args.file is not None:
        from brimful.server.jobfiles.jobfile import read_job_file

        file = read_job_file(Path(args.file))
        if file.unsupported and not args.without_unsupported:
            named = Several(
                tuple(say("jobfile.cannot", field=k, why=v) for k, v in file.unsupported.items()), "; "
            )
            raise BadInput(say("fleet.file_unsupported", file=args.file, fields=named), code="unsupported")
        body |= file.body
        left_out = [say("jobfile.left_out", field=k, why=v) for k, v in file.unsupported.items()]
        notes += [*file.notes, *left_out]
        config, steps = config or file.fit, file.steps
        missing = [name for name in file.env_from if name not in os.environ]
        if missing:
            raise BadInput(say("fleet.env_from_not_set", missing=Quoted(missing[0]), name=missing[0]))
        body["env"] = {**body.get("env", {}), **{name: os.environ[name] for name in file.env_from}}
    elif args.command:
        body |= {"command": args.command, "folder": _folder()}
    else:
        raise BadInput(say("fleet.no_command"))
    body |= _flags(args)
    carried = {key: os.environ[key] for key in SHELL_ENV if key in os.environ}
    body["env"] = carried | body["env"] | _pairs(args.env)
    return body, notes, config, steps


def _flags(args: argparse.Namespace) -> dict[str, Any]:
    as_given = ("gpus", "scaling", "name", "priority", "tenant", "project", "queue", "array", "retries")
    given: dict[str, Any] = {
        **{name: getattr(args, name) for name in as_given},
        "gpu_types": catalog_names(args.gpu) or None,
        "sites": args.site or None,
        "after": [":".join(after_from(text)) for text in args.after] or None,
    }
    if args.array is not None:
        tasks_from(args.array)
    if args.by is not None and args.deadline is not None:
        raise BadInput(say("fleet.by_and_deadline"))
    if args.off_peak or args.by is not None:
        given["deferrable"] = True
    if args.deadline is not None or args.by is not None or args.max_run is not None:
        from brimful.server.jobfiles.jobfile import seconds
        from brimful.server.jobfiles.own import deadline

        if args.by is not None:
            given["deadline_s"] = deadline(args.by, "--by")
        elif args.deadline is not None:
            given["deadline_s"] = deadline(args.deadline, "--deadline")
        given["max_run_s"] = None if args.max_run is None else seconds(args.max_run, "--max-run")
    if args.budget is not None:
        given["budget_microusd"] = usd(args.budget, "--budget")
    if args.limit is not None:
        given["limit_microusd_per_gpu_hour"] = usd(args.limit, "--limit")
    return {name: value for name, value in given.items() if value is not None}


def _attach_estimates(
    body: dict[str, Any], config: str, types: list[str], steps: int | None, *, headless: bool
) -> list[Sentence]:
    """Predict bytes and step time on each GPU type; only types that can hold the job remain."""
    from brimful.cli.fleet.estimates import estimates_for

    others = 0 if headless else None
    found = estimates_for(config, types, gpus=body.get("gpus", 1), other_bytes=others)
    body["predicted"] = found.predicted
    body["gpu_types"] = sorted(found.predicted)
    if steps is not None:
        body["steps"] = steps
    return found.notes


def _folder() -> str:
    try:
        return str(Path.cwd())
    except OSError as error:
        raise BadInput(say("fleet.folder_gone")) from error


def _pairs(given: list[str]) -> dict[str, str]:
    pairs = {}
    for pair in given:
        key, equals, value = pair.partition("=")
        if not equals:
            raise BadInput(say("fleet.bad_env", pair=Quoted(pair[:60])))
        pairs[key] = value
    return pairs


def _dry_text(body: dict[str, Any], notes: list[Sentence]) -> str:
    body = all_printable(body)
    budget, longest = body.get("budget_microusd"), body.get("max_run_s")
    types = either(body["gpu_types"]) if body.get("gpu_types") else say("fleet.any_type")
    within = say(f"fleet.within_{body.get('within', 'node')}", gpus=body.get("gpus", 1), types=types)
    rows: list[tuple[str, object]] = [
        ("name", body.get("name") or ""),
        ("command", command_line(body["command"])),
        ("folder", body["folder"]),
        ("gpus", within),
        ("priority", body.get("priority", "normal")),
        ("budget", Usd(budget) if budget else say("fleet.no_budget")),
        ("longest", Seconds(longest) if longest else ""),
        ("array", body.get("array") or ""),
        ("after", ", ".join(body.get("after", ()))),
        ("deadline", clock(body["deadline_s"]) if body.get("deadline_s") else ""),
    ]
    for gpu, each in body.get("predicted", {}).items():
        size, step = Size(each["peak_bytes"]), Seconds(each["step_s"])
        rows.append(("predicted", say("fleet.predicted_on", gpu=gpu, size=size, step=step)))
    rows += [("note", printable(told(note))) for note in notes]
    lines = [line for name, said in rows for line in wrapped(f"  {words(f'fleet.row_{name}'):<9} ", said)]
    return "\n".join([words("fleet.would_submit"), *lines])
