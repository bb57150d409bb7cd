"""Start everything, say where it is, stop cleanly."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import uvicorn

from brimful import __version__
from brimful.adapters.engines.local import LocalEngine
from brimful.adapters.files import read_json, write_atomically, write_json
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import WorldFailed
from brimful.fleet.state import Node
from brimful.scheduler.cycle import Rules
from brimful.server.app import make_app
from brimful.server.service import Service
from brimful.server.settings import Settings

log = logging.getLogger("brimful")


def serve(settings: Settings, *, as_json: bool = False) -> None:
    """Run until Ctrl-C or SIGTERM. Jobs go on without the server and are found again by the next one."""
    _set_up_logging()
    with _folder_of_our_own(settings), _listening_socket(settings) as listener:
        store = SqlStore(settings.database_url)
        service = Service(
            store, _local_engine(settings), Rules(grace_s=settings.grace_s), tick_s=settings.tick_s
        )
        app = make_app(service, _token(settings))
        service.start()
        url = f"http://{_bracketed(settings.host)}:{listener.getsockname()[1]}"
        write_json(settings.server_file, {"url": url, "pid": os.getpid()})
        sys.stdout.write((_announcement(url, settings) if as_json else banner(url, settings, service)) + "\n")
        sys.stdout.flush()
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=3)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        except KeyboardInterrupt:
            pass  # uvicorn has shut down and passes the signal on; this is the end we want
        finally:
            service.stop()
            settings.server_file.unlink(missing_ok=True)
            store.close()
            log.info("stopped; everything is kept in %s", settings.folder)


def banner(url: str, settings: Settings, service: Service) -> str:
    running = sum(state.phase == "running" for state in service.fleet.jobs.values())
    known = f", {len(service.fleet.jobs)} jobs known, {running} running" if service.fleet.jobs else ""
    return f"""
  brimful {__version__} is up{known}

    console   {url}
    fleet     {settings.slots} x {settings.gpu} (declared, ${settings.usd_per_hour} per GPU-hour)
    data      {settings.folder}

  try, in another terminal:

    {_brimful()} fit examples/nanogpt/train_fineweb.py --gpu rtx-4070
    {_brimful()} submit -- python examples/train_tiny.py
    {_brimful()} jobs

  Ctrl-C stops it; jobs and money are kept.
"""


def _announcement(url: str, settings: Settings) -> str:
    return json.dumps({"ok": True, "data": {"url": url, "pid": os.getpid(), "data": settings.data}})


def _brimful() -> str:
    """How to call brimful from here: by its path unless it is on the PATH."""
    here = Path(sys.executable).parent
    if str(here) in os.environ.get("PATH", "").split(os.pathsep):
        return "brimful"
    with contextlib.suppress(ValueError):
        return str((here / "brimful").relative_to(Path.cwd()))
    return str(here / "brimful")


@contextlib.contextmanager
def _folder_of_our_own(settings: Settings) -> Iterator[None]:
    """Hold the data folder: two servers on one folder would both act."""
    try:
        settings.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        lock = (settings.folder / "server.lock").open("w")
    except OSError as error:
        raise WorldFailed(
            f"cannot use the data folder {settings.folder}: {error.strerror}",
            hint="choose one you may write to: brimful up --data FOLDER",
            code="folder_unusable",
        ) from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            other = read_json(settings.server_file) or {}
            raise WorldFailed(
                f"another brimful (pid {other.get('pid', 'unknown')}) is using {settings.folder}"
                f" at {other.get('url', 'an address it has not told yet')}",
                hint="use that one, stop it, or choose another folder: brimful up --data FOLDER --port PORT",
                code="already_running",
            ) from error
        yield


@contextlib.contextmanager
def _listening_socket(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if settings.host == "::1" else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(128)
        except OSError as error:
            raise WorldFailed(
                f"cannot listen on {settings.host} port {settings.port}: {error.strerror}",
                hint=f"free the port or choose another: brimful up --port {settings.port % 65535 + 1}",
                code="port_taken",
            ) from error
        yield listener


def _local_engine(settings: Settings) -> LocalEngine:
    node = Node(
        site="local",
        node="local-0",
        gpu=settings.gpu,
        gpus=settings.slots,
        microusd_per_gpu_hour=settings.microusd_per_gpu_hour,
        declared=True,
    )
    return LocalEngine(settings.folder / "leases", [node])


def _token(settings: Settings) -> str:
    """The secret that lets this user's CLI write; made at the first start, readable by its owner alone."""
    try:
        return settings.token_file.read_text(encoding="utf-8").strip()
    except FileNotFoundError:
        token = secrets.token_urlsafe(32)
        write_atomically(settings.token_file, token)
        return token


def _set_up_logging() -> None:
    logging.basicConfig(
        level=logging.INFO, format="%(asctime)s  %(message)s", datefmt="%H:%M:%S", stream=sys.stderr
    )
    logging.getLogger("uvicorn").setLevel(logging.WARNING)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
