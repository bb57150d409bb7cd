"""Start everything, print where it is, stop cleanly."""

from __future__ import annotations

import contextlib
import gc
import hashlib
import json
import logging
import os
import shlex
import signal
import socket
import ssl
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import uvicorn
from starlette.types import ASGIApp

from brimful import __version__
from brimful.adapters.clock import SteadyClock
from brimful.adapters.files import write_json
from brimful.adapters.identity.oidc import Oidc
from brimful.adapters.identity.settings import read_oidc
from brimful.adapters.identity.store import AccessStore
from brimful.adapters.notify import Mail
from brimful.adapters.stores.leader import Leadership
from brimful.adapters.stores.notices import NotifyStore
from brimful.adapters.stores.sql import SqlStore
from brimful.client.settings import Settings, default_folder
from brimful.errors import BadInput, Said, WorldFailed
from brimful.fleet.state import Fleet, Node
from brimful.language import Plain, Sentence, Usd, count, os_words, say, told, words
from brimful.market.pools import Market, decided_by_bids, market_of, read_reserve_terms
from brimful.market.spot import Terms
from brimful.server import retention
from brimful.server.app import Middleware, make_app
from brimful.server.auth import Access
from brimful.server.rehearsing.rehearser import RehearsalTerms
from brimful.server.run.backups import LOOK_S, Backups
from brimful.server.run.connections import PatientProtocol
from brimful.server.run.engines import (
    bind_runs,
    buying_of,
    code_of,
    engines_of,
    identity_of,
    nodes_of,
    observers_of,
    vendors_of,
)
from brimful.server.run.folder_locks import locked_folders
from brimful.server.run.operator_token import operator_token
from brimful.server.run.queues_file import queues_of
from brimful.server.run.server_log import set_up_logging
from brimful.server.service.idle import read_idle
from brimful.server.service.notify import Outbound
from brimful.server.service.service import Service

log = logging.getLogger("brimful")

END_OF_CERTIFICATE = "-----END CERTIFICATE-----"


def serve(settings: Settings, *, as_json: bool = False) -> None:
    """Run until Ctrl-C or SIGTERM. Jobs keep running without the server, and the next one finds them."""
    set_up_logging(settings.log_format)
    certificate, policy, oidc = _certificate(settings), settings.chosen_policy, _oidc(settings)
    with locked_folders(settings), _listening_socket(settings) as listener:
        store = SqlStore(settings.database_url)
        store.claim(identity_of(settings), folder=settings.engines_folder)
        service = _service(settings, store)
        bind_runs(store, settings.engines_folder)
        access = Access(AccessStore(store))
        operator = operator_token(access, settings.token_file)
        app = make_app(
            service,
            access,
            hosts=settings.hosts,
            secure=bool(settings.tls_cert),
            oidc=oidc,
            open_fit=settings.open_fit,
        )
        _keep(settings, service, store)
        _back_up(settings, service)
        service.start()
        if settings.queues:  # at start the file decides; afterwards, whoever sets them
            service.submissions.set_queues(queues_of(settings.queues), by=operator.name)
        url = f"{settings.scheme}://{_reachable(settings.host)}:{listener.getsockname()[1]}"
        # Only the user reads a terminal; others may read a file or a journal, and for a long time.
        console = f"{url}/console/enter?ticket={access.ticket(operator)}" if sys.stdout.isatty() else url
        announced = {"url": url, "pid": os.getpid(), "certificate": certificate, "policy": policy.text}
        write_json(settings.server_file, announced)
        server = _web_server(app, settings)
        fleet, market = service.reader.fleet, service.reader.market
        text = (
            _announcement(url, settings, market)
            if as_json
            else banner(console, settings, fleet, *service.driver.looked())
        )
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()
        threading.Thread(target=_preload, args=(app,), name="warm up", daemon=True).start()
        try:
            server.run(sockets=[listener])
        finally:
            service.stop()
            access.close()
            settings.server_file.unlink(missing_ok=True)
            store.close()
            going = len(service.reader.fleet.open_leases)
            # Like the banner, this log line is in the language of whoever started the server.
            code = "server.stopped.running" if going else "server.stopped"
            log.info("%s", words(code, folder=settings.folder, jobs=count("job", going)))


def _rehearsal(settings: Settings) -> RehearsalTerms:
    return RehearsalTerms(
        database=settings.database_url,
        policies=settings.candidates,
        cpu_percent=settings.rehearse_cpu_percent,
        adopts=settings.rehearse_adopt,
    )


def _service(settings: Settings, store: SqlStore) -> Service:
    policy, vendors = settings.chosen_policy, vendors_of(settings)
    engines = [*engines_of(settings), *(each for vendor in vendors for each in vendor.engines)]
    return Service(
        store,
        engines,
        policy.rules,
        policy=policy.text,
        leadership=Leadership(store),
        # A site that does not answer would delay the start, so ask only if it matters.
        market=_market(settings, nodes_of(engines) if settings.market else []),
        providers=[vendor.provider for vendor in vendors],
        observers=observers_of(settings),
        buying=buying_of(settings),
        code=code_of(settings),
        notify=(NotifyStore(store), _outbound(settings)),
        idle=read_idle(settings.idle),
        rehearsal=_rehearsal(settings),
        tick_s=settings.tick_s,
        folders=sorted({settings.folder, settings.engines_folder}),
        courses=settings.folder / "measured.json",
        max_queued=settings.max_queued,
        clock=SteadyClock(),
    )


def _preload(app: Middleware) -> None:
    """Make every page before anyone asks for one.

    Freeze existing objects: scanning all of them again and again would pause every thread.
    """
    app.warm_up()
    gc.collect()
    gc.freeze()


def _web_server(app: ASGIApp, settings: Settings) -> uvicorn.Server:
    config = uvicorn.Config(
        app,
        http=PatientProtocol,
        log_config=None,
        access_log=False,
        server_header=False,
        timeout_graceful_shutdown=3,
        ssl_certfile=settings.tls_cert or None,
        ssl_keyfile=settings.tls_key or None,
    )
    server = uvicorn.Server(config)
    # Before we report that it is up. Later uvicorn installs its own handlers and passes signals on to these.
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda _number, _frame: setattr(server, "should_exit", True))
    return server


def _keep(settings: Settings, service: Service, store: SqlStore) -> None:
    """Nothing is deleted unless the operator has said what to keep."""
    if not settings.keep:
        return
    keep, reader, engines = retention.read_keep(settings.keep), service.reader, settings.engines_folder

    def clean() -> None:
        jobs, now_s = retention.Jobs(reader.fleet, reader.job), reader.now_s()
        retention.clean_tables(store, keep, now_s=now_s, dry_run=False)
        items = retention.surplus(retention.unneeded(engines, jobs, now_s=now_s), keep, now_s=now_s)
        gone = retention.remove(items, jobs, now_s=now_s, engines=engines)
        if gone:
            log.info("retention removed %d items, %d bytes", len(gone), sum(each.size for each in gone))

    service.beside("retention", clean, every_s=retention.EVERY_S, at_once=False)


def _outbound(settings: Settings) -> Outbound:
    way = Mail(
        host=settings.smtp,
        sender=settings.smtp_from,
        user=settings.smtp_user,
        password_file=settings.smtp_password_file,
    )
    hosts = frozenset(name.strip() for name in settings.notify_hosts.split(",") if name.strip())
    return Outbound(mail=way, hosts=hosts)


def _back_up(settings: Settings, service: Service) -> None:
    if settings.backup_folder:
        backups, health = Backups(settings), service.reader.health
        health.backup_age_s, health.backup_period_s = backups.age_s, backups.period_s
        service.beside("backups", backups.look, every_s=LOOK_S)


def _market(settings: Settings, nodes: Sequence[Node]) -> Market | None:
    terms = Terms(
        notice_s=settings.notice_s,
        period_s=settings.market_period_s,
        max_wait_s=settings.market_wait_s,
        drain_s=min(600, settings.market_wait_s // 2),
    )
    return market_of(settings.market, nodes, terms, read_reserve_terms(settings.reserve))


def banner(
    console: str,
    settings: Settings,
    fleet: Fleet,
    nodes: Sequence[Node],
    problems: Mapping[str, Said] | None = None,
) -> str:
    """`problems`: by site, why its nodes are missing."""
    jobs, market = len(fleet.jobs), _market(settings, nodes)
    # Commands find a server by its data folder, and another terminal knows only the default one.
    elsewhere = settings.folder != default_folder(os.environ)
    called = f"BRIMFUL_DATA={shlex.quote(settings.data)} {_brimful()}" if elsewhere else _brimful()
    # If each tenant has a user, the operator may have none and then submits nothing.
    teams = settings.users_of_tenants
    example = "examples/train_tiny.py"
    first = f"submit -- {f'python {example}' if Path(example).is_file() else 'echo hello'}"
    if teams and "default" not in teams:
        first = f"admin tokens add alice --tenant {min(teams)}"
    moved = f"BRIMFUL_ENGINES={shlex.quote(settings.engines)} " if settings.engines else ""
    watched = [
        say("server.site_watched", site=each.site, command=f"{moved}{called} admin observed {each.site}")
        for each in settings.declared_sites
        if each.mode == "observe"
    ]
    declared = _nodes_said(nodes, guessed=not settings.slots)
    title = words("server.is_up", version=__version__)
    if jobs:
        title = words("server.is_up_with", up=title, jobs=count("job", jobs), running=len(fleet.open_leases))
    facts = {
        "console": [console],
        "fleet": [*map(told, (*declared, *watched, *_problems_said(problems or {})))],
        "policy": [settings.chosen_policy.text],
        "market": [told(decided_by_bids(market.pools))] if market else [],
        "data": [str(settings.folder)],
    }
    labels = {name: words(f"server.banner_{name}") for name in facts}
    wide = max(9, *map(len, labels.values()))
    rows = [
        f"    {labels[name] if line == lines[0] else '':<{wide}} {line}"
        for name, lines in facts.items()
        for line in lines
    ]
    table = "\n".join(rows)
    return f"""
  {title}

{table}

  {words("server.banner_try")}

    {_brimful()} fit --model gpt2 --gpu rtx-4070
    {called} {first}
    {called} jobs

  {words("server.banner_stop")}
"""


def _nodes_said(nodes: Sequence[Node], *, guessed: bool) -> Iterator[Sentence]:
    """A machine by its GPUs, a cluster by the number of each type; `guessed`: the number was not given."""
    clusters = Counter(
        (node.site, node.gpus, node.gpu, node.microusd_per_gpu_hour)
        for node in nodes
        if node.chosen_by == "count"
    )
    for (site, gpus, gpu, microusd), many in clusters.items():
        shown = f"{site}: {many} x {gpus} x {gpu}"
        yield say("server.node_of_cluster", gpus=shown, price=Usd(microusd))
    yield from (_node_said(node, guessed=guessed) for node in nodes if node.chosen_by != "count")


def _problems_said(problems: Mapping[str, Said]) -> Iterator[Sentence]:
    yield from (say("server.site_failed", site=site, why=why) for site, why in problems.items())


def _node_said(node: Node, *, guessed: bool) -> Sentence:
    code = "node_declared" if node.declared else "node_listed"
    if guessed and node.declared and node.site == "local" and node.gpu == "slot":
        code = "node_slots"
    where = f"{node.site}: " if node.declared and node.site != "local" else ""
    price = Usd(node.microusd_per_gpu_hour)
    return say(f"server.{code}", gpus=f"{where}{node.gpus} x {node.gpu}", price=price)


def _announcement(url: str, settings: Settings, market: Market | None) -> str:
    data = {
        "url": url,
        "pid": os.getpid(),
        "data": settings.data,
        "policy": settings.chosen_policy.text,
        "market": [] if market is None else [*market.pools],
    }
    return json.dumps({"ok": True, "data": data})


def _brimful() -> str:
    """How to call brimful from here: by its path unless it is on the PATH."""
    here = Path(sys.executable).parent
    if str(here) in os.environ.get("PATH", "").split(os.pathsep):
        return "brimful"
    with contextlib.suppress(ValueError):
        return str((here / "brimful").relative_to(Path.cwd()))
    return str(here / "brimful")


@contextlib.contextmanager
def _listening_socket(settings: Settings) -> Iterator[socket.socket]:
    family = socket.AF_INET6 if ":" in settings.host else socket.AF_INET
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((settings.host, settings.port))
            listener.listen(128)
        except OSError as error:
            raise WorldFailed(
                say(
                    "server.cannot_listen",
                    host=settings.host,
                    port=Plain(settings.port),
                    error=os_words(error),
                    other=Plain(settings.port % 65535 + 1),
                ),
                code="port_taken",
            ) from error
        yield listener


def _certificate(settings: Settings) -> str:
    """SHA-256 of our certificate, for commands that find us by our data folder; empty without TLS.

    Read with its key before anything starts, so that any problem with them is one clear error.
    """
    if not settings.tls_cert:
        return ""
    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(
            settings.tls_cert, settings.tls_key, password=lambda: ""
        )
        first = Path(settings.tls_cert).read_text(encoding="ascii").partition(END_OF_CERTIFICATE)
        begin = first[0].rindex("-----BEGIN CERTIFICATE-----")
        der = ssl.PEM_cert_to_DER_cert(first[0][begin:] + first[1])
    except (OSError, ValueError) as error:  # ssl's errors are OSErrors
        raise BadInput(
            say("server.bad_certificate", tls_cert=settings.tls_cert, tls_key=settings.tls_key, error=error),
            code="bad_certificate",
        ) from error
    return hashlib.sha256(der).hexdigest()


def _oidc(settings: Settings) -> Oidc | None:
    """Where people sign in, read before anything starts."""
    if not settings.identity:
        return None
    if find_spec("authlib") is None:
        raise BadInput(say("server.needs_oidc_extra"), code="missing_extra")
    return Oidc(read_oidc(Path(settings.identity)))


def _reachable(host: str) -> str:
    """As in a URL. A wildcard address is one to listen on, not one to call."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104
    return f"[{host}]" if ":" in host else host
