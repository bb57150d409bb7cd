"""Start everything, say where it is, stop cleanly."""

from __future__ import annotations

import contextlib
import fcntl
import json
import logging
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import IO

import uvicorn

from brimful import __version__
from brimful.adapters.clock import SteadyClock
from brimful.adapters.files import read_json, write_atomically, write_json
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.sql import SqlStore
from brimful.errors import BrimfulError, WorldFailed
from brimful.fleet.state import Node
from brimful.scheduler.cycle import Rules
from brimful.server.app import make_app
from brimful.server.engines import identity_of, local_engines, nodes_of
from brimful.server.service import Service
from brimful.server.settings import Settings
from brimful.server.words import printable
from brimful.units import counted, show_usd

log = logging.getLogger("brimful")

LOCK_TRIES = 20
TOKEN_CHARS = 32


def serve(settings: Settings, *, as_json: bool = False) -> None:
    """Run until Ctrl-C or SIGTERM. Jobs go on without the server and are found again by the next one."""
    _set_up_logging()
    with _folder_of_our_own(settings), _listening_socket(settings) as listener:
        token = _token(settings)
        engines = local_engines(settings)
        store = SqlStore(settings.database_url)
        store.claim(identity_of(settings), folder=settings.engines_folder)
        service = Service(
            store,
            engines,
            Rules(preempt="priority", min_run_s=settings.min_run_s, grace_s=settings.grace_s),
            leadership=Leadership(store),
            tick_s=settings.tick_s,
            clock=SteadyClock(),
        )
        app = make_app(service, token)
        service.start()
        url = f"http://{_bracketed(settings.host)}:{listener.getsockname()[1]}"
        write_json(settings.server_file, {"url": url, "pid": os.getpid()})
        sys.stdout.write(
            (_announcement(url, settings) if as_json else banner(url, settings, service, nodes_of(engines)))
            + "\n"
        )
        sys.stdout.flush()
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=3)
        # uvicorn shuts down and then passes the signal on to these, which have nothing left to do.
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, lambda _number, _frame: None)
        try:
            uvicorn.Server(config).run(sockets=[listener])
        finally:
            service.stop()
            settings.server_file.unlink(missing_ok=True)
            store.close()
            going = len(service.fleet.open_leases)
            on = f"; {counted(going, 'job')} still running, and billed" if going else ""
            log.info("stopped; everything is kept in %s%s", settings.folder, on)


def banner(url: str, settings: Settings, service: Service, nodes: Sequence[Node]) -> str:
    jobs = len(service.fleet.jobs)
    known = f", {counted(jobs, 'job')} known, {len(service.fleet.open_leases)} running" if jobs else ""
    fleet = "\n              ".join(_node_text(node) for node in nodes)
    return f"""
  brimful {__version__} is up{known}

    console   {url}
    fleet     {fleet}
    data      {settings.folder}

  try, in another terminal:

    {_brimful()} fit examples/nanogpt/train_fineweb.py --gpu rtx-4070
    {_brimful()} submit -- python examples/train_tiny.py
    {_brimful()} jobs

  Ctrl-C stops the server; jobs go on and the next start finds them again.
"""


def _node_text(node: Node) -> str:
    price = show_usd(node.microusd_per_gpu_hour)
    if not node.declared:
        return f"{node.gpus} x {node.gpu}, as the driver lists them, {price} per GPU-hour"
    if node.site != "local":
        return f"{node.site}: {node.gpus} x {node.gpu}, declared, {price} per GPU-hour"
    hint = "; your own: --slots 1 --gpu rtx-4070" if node.gpu == "slot" else ""
    return f"{node.gpus} x {node.gpu}, declared, {price} per GPU-hour{hint}"


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
        if settings.folder.stat().st_uid == os.geteuid():
            settings.folder.chmod(0o700)  # tokens, logs and commands of jobs are nobody else's
        lock = settings.lock_file.open("w")
    except OSError as error:
        raise WorldFailed(
            f"cannot use the data folder {settings.folder}: {error.strerror}",
            hint="choose one you may write to: brimful up --data FOLDER",
            code="folder_unusable",
        ) from error
    with lock:
        if not _taken(lock):
            raise WorldFailed(
                f"another brimful {_whereabouts(settings)} is using {settings.folder}",
                hint="use that one, stop it, or choose another folder: brimful up --data FOLDER --port PORT",
                code="already_running",
            )
        yield


def _taken(lock: IO[str]) -> bool:
    """Take the lock. A command that looks whether a server runs holds it for a blink: try again."""
    for _ in range(LOCK_TRIES):
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(0.05)
        else:
            return True
    return False


def _whereabouts(settings: Settings) -> str:
    try:
        other = read_json(settings.server_file) or {}
        return f"(pid {other['pid']}, at {other['url']})"
    except (BrimfulError, OSError, KeyError):
        return "(which has not told its address)"


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


def _token(settings: Settings) -> str:
    """The secret that lets this user's CLI in; made at the first start, readable by its owner alone.

    One that is too short to be ours, or that others could read, is no secret: it is replaced.
    """
    path = settings.token_file
    try:
        found = path.stat()
        token = path.read_text(encoding="utf-8", errors="replace").strip()
        private = found.st_uid == os.geteuid() and not found.st_mode & 0o077
        if private and len(token) >= TOKEN_CHARS and token.isascii():
            return token
        log.warning("the token in %s was %s; here is a new one", path, "damaged" if private else "readable")
    except FileNotFoundError:
        pass
    except OSError as error:
        raise _unusable_token(path, error) from error
    token = secrets.token_urlsafe(TOKEN_CHARS)
    try:
        write_atomically(path, token)
    except OSError as error:
        raise _unusable_token(path, error) from error
    return token


def _unusable_token(path: Path, error: OSError) -> WorldFailed:
    return WorldFailed(
        f"cannot use the token file {path}: {error.strerror}",
        hint="remove it: the next start makes a new one",
        code="token_unusable",
    )


class OneLine(logging.Formatter):
    """What users wrote cannot break out of its line, nor move a terminal's cursor."""

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802 - logging's own name
        record.message = printable(record.message)
        return super().formatMessage(record)


def _set_up_logging() -> None:
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(OneLine("%(asctime)s  %(message)s", datefmt="%H:%M:%S"))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    for name in ("uvicorn", "alembic"):
        logging.getLogger(name).setLevel(logging.WARNING)


def _bracketed(host: str) -> str:
    return f"[{host}]" if ":" in host else host
