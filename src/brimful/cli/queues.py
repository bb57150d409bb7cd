"""`brimful queues`: who holds GPUs, who waits, and how much each has had lately."""

from __future__ import annotations

import argparse

from brimful.cli.commands import Answer
from brimful.cli.render import table
from brimful.client.client import Client
from brimful.language.printable import all_printable
from brimful.units import HOUR_S, show_seconds

EXAMPLE = "brimful queues"

LEGEND = (
    "wants: GPUs its waiting jobs ask for; longest: how long one of them has waited;",
    "held: jobs on hold; GPU-h: had lately, less the longer ago",
)


def add_arguments(parser: argparse.ArgumentParser) -> None:  # noqa: ARG001 - it takes none of its own
    return


def run(args: argparse.Namespace) -> Answer:  # noqa: ARG001
    queues = Client().queues()
    if not queues:
        return Answer({"queues": queues}, "no queue has had work yet")
    rows = [
        [
            queue["queue"],
            str(queue["running"]),
            str(queue["held_gpus"]),
            "" if queue["quota_gpus"] is None else str(queue["quota_gpus"]),
            str(queue["waiting"]),
            str(queue["waiting_gpus"]),
            "" if queue["oldest_wait_s"] is None else show_seconds(queue["oldest_wait_s"]),
            str(queue["on_hold"]),
            f"{queue['recent_gpu_s'] / HOUR_S:.1f}",
        ]
        for queue in all_printable(queues)
    ]
    header = ["queue", "running", "GPUs", "quota", "waiting", "wants", "longest", "held", "GPU-h"]
    return Answer({"queues": queues}, "\n".join([table(header, rows, right=range(1, 9)), "", *LEGEND]))
