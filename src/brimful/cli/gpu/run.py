"""`brimful run`: start a training command, and keep it alive when GPU memory runs out."""

from __future__ import annotations

import argparse
import os
import shlex
import time
from collections.abc import Callable
from pathlib import Path

from brimful.cli.commands import Answer, integer
from brimful.cli.gpu.others import add_others, other_bytes
from brimful.cli.options import own_correction
from brimful.cli.render import paint, tell, wrapped
from brimful.errors import BrimfulError
from brimful.guard.checkpoints import Keeper
from brimful.guard.command import Command, read_command
from brimful.guard.forecast import Forecast, Room, forecast, room_by_driver, try_settings
from brimful.guard.guard import TRIES, Guard, Wishes, sealed_folder
from brimful.language import Quoted, Several, Value, plain_value, say, told, words
from brimful.meter.idle import IdleWatch
from brimful.meter.samples import GpuSample
from brimful.specs.desktop import others_on
from brimful.specs.gpu import find_gpu

EXAMPLE = """\
brimful run -- python train.py config/train_gpt2.py --batch_size=16
brimful run --gpu rtx-4070 --fix -- python train.py config/train_gpt2.py
brimful run --climb --tries 8 -- torchrun --nproc_per_node=4 train.py config/train_gpt2.py
brimful run --set-key batch_size=--bs --set-key accumulation=--accum -- python my_train.py --bs 8 --accum 4"""

TAKES_COMMAND = True


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.usage = "brimful run [options] -- COMMAND [ARG ...]"
    parser.add_argument("--gpu", metavar="NAME")
    add_others(parser)
    parser.add_argument("--fix", action="store_true")
    parser.add_argument("--climb", action="store_true")
    parser.add_argument("--tries", type=integer, default=TRIES, metavar="N")
    parser.add_argument("--set-key", action="append", default=[], metavar="WORD=KEY")
    about = parser.add_argument_group("trained")
    about.add_argument("--config", metavar="FILE")
    about.add_argument("--model", metavar="NAME")
    about.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    again = parser.add_argument_group("again")
    again.add_argument("--checkpoint", type=Path, metavar="PATH")
    again.add_argument("--resume-with", action="append", default=[], metavar="WORD")
    again.add_argument("--logs", type=Path, default=Path("brimful-runs"), metavar="FOLDER")
    idle = parser.add_mutually_exclusive_group()
    idle.add_argument("--idle", type=duration, metavar="TIME")
    idle.add_argument("--stop-idle", type=duration, metavar="TIME")
    parser.add_argument("--dry-run", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    command = read_command(args.command, args.set_key)
    keeper = Keeper(
        command=command, path=args.checkpoint, words=tuple(args.resume_with), sealed=sealed_folder()
    )
    # With --json, standard output is only for the envelope.
    wishes = Wishes(
        tries=args.tries, fix=args.fix, climb=args.climb, logs=args.logs, stdout=2 if args.json else 1
    )
    said: list[Value] = []
    tell = said.append if args.dry_run else _tell
    guard = Guard(command, _forecast(args, command, tell), keeper, wishes, tell, idle=_idle(args, tell))
    if args.dry_run:
        data = guard.preview()
        lines = [line for each in said for line in wrapped("", each)]
        text = "\n".join([*lines, words("gpu.run_would_start", command=shlex.join(data["words"]))])
        codes = [plain_value(each) for each in said]
        return Answer({**data, "said": [told(each) for each in said], "said_codes": codes}, text)
    outcome = guard.run()
    return Answer(outcome.as_dict(), "", outcome.exit_code)


def duration(text: str) -> float:
    """Seconds in '30m', '2h', '90s' or '90', for argparse."""

    number, unit = text.rstrip("smh"), text[-1:]
    seconds = float(number) if number.isascii() and number.isdigit() and len(number) < 8 else 0.0
    seconds *= {"m": 60, "h": 3600}.get(unit, 1)
    if seconds <= 0 or len(text) - len(number) > 1:
        raise argparse.ArgumentTypeError(words("gpu.not_a_duration", text=Quoted(text[:40])))
    return seconds


def _idle(args: argparse.Namespace, tell: Callable[[Value], None]) -> IdleWatch | None:
    after_s = args.stop_idle or args.idle
    if after_s is None:
        return None

    def look() -> list[GpuSample] | None:
        from brimful.meter.nvml import read_gpus

        try:
            return read_gpus(time.time())
        except BrimfulError:
            return None

    return IdleWatch(after_s, stops=args.stop_idle is not None, tell=tell, look=look)


def _forecast(args: argparse.Namespace, command: Command, tell: Callable[[Value], None]) -> Forecast | None:
    """What can be predicted; without a prediction the run still starts."""

    reading, why = try_settings(command, config=args.config, model=args.model, sets=args.set)
    room, no_room = _room(args, command)
    if reading is None or room is None:
        tell(say("gpu.run_nothing_predicted", why=why or no_room))
        return None
    return forecast(reading, room, own_correction())


def _room(args: argparse.Namespace, command: Command) -> tuple[Room | None, Value | None]:
    """The card and what others hold of it: from the user, or from the driver now."""

    given_bytes = other_bytes(args)
    named = find_gpu(args.gpu) if args.gpu is not None else None
    try:
        from brimful.meter.nvml import read_gpus

        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        seen = room_by_driver(read_gpus(time.time()), visible=visible, gpus=command.gpus)
    except BrimfulError as error:
        if named is None:
            return None, Several((error.said, error.way_out or say("guard.name_card")), between="; ")
        return Room(gpu=named, others=others_on(named, given_bytes), by_driver=False), None
    if named is not None and named != seen.gpu:
        return Room(gpu=named, others=others_on(named, given_bytes), by_driver=False), None
    if given_bytes is not None:
        return Room(gpu=seen.gpu, others=others_on(seen.gpu, given_bytes), by_driver=False), None
    return seen, None


def _tell(said: Value) -> None:
    """Our own messages go to standard error: standard output belongs to the command."""
    lines = wrapped("brimful: ", said)
    tell("\n".join(paint(line, "cyan") for line in lines), aside=True)
