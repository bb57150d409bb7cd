"""`brimful admin exporter`: this machine's GPUs and runs, for Prometheus."""

from __future__ import annotations

import argparse
import json
import sys
import threading
from importlib import resources

from brimful.cli.commands import Answer, integer
from brimful.client.settings import LOOPBACK
from brimful.errors import BadInput
from brimful.language import Plain, Quoted, say, words
from brimful.language.failures import needs_package, os_errors_as

EXAMPLE = """brimful admin exporter
brimful admin exporter --dashboard > brimful-grafana.json
brimful admin exporter --once > /var/lib/node_exporter/brimful.prom"""
PORT = 9642


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=integer, default=PORT)
    parser.add_argument("--dashboard", action="store_true")
    parser.add_argument("--once", action="store_true")


def run(args: argparse.Namespace) -> Answer:
    if args.dashboard:
        text = (resources.files("brimful.meter") / "grafana.json").read_text(encoding="utf-8")
        return Answer(json.loads(text), text.rstrip())
    with needs_package("gpu.exporter_needs"):
        from prometheus_client import start_http_server

        from brimful.meter.exporter import as_text, registry
    from brimful.meter.machine import Looker

    if args.host not in LOOPBACK:
        raise BadInput(say("gpu.not_loopback", host=Quoted(args.host[:60])), code="not_loopback")
    if args.port > 65535:
        raise BadInput(say("gpu.port_out_of_range", port=Plain(args.port)))
    looker = Looker()
    if args.once or args.json:
        text = as_text(looker)
        return Answer({"text": text}, text.rstrip())
    with os_errors_as("gpu.cannot_listen", host=args.host, port=Plain(args.port)):
        server, thread = start_http_server(args.port, addr=args.host, registry=registry(looker))
    url = f"http://{args.host}:{args.port}/metrics"
    sys.stderr.write(words("operate.exporter_at", url=url) + "\n")
    try:
        threading.Event().wait()
    except KeyboardInterrupt:
        pass
    finally:
        server.shutdown()
        thread.join()
        looker.close()
    return Answer(None, "")
