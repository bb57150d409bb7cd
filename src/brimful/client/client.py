"""`brimful.Client`: a running brimful's public API, for scripts and for the commands, which use nothing else.

Needs only Python. Every method returns the `data` of the API's envelope as plain dicts, whose shapes are in
answers.py, and raises the server's error as the same class.
"""

from __future__ import annotations

import fcntl
import http.client
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast
from urllib.error import HTTPError, URLError
from urllib.parse import quote, urlencode
from urllib.request import BaseHandler, ProxyHandler, Request, build_opener

from brimful.client.proof import ProvenHandler, StaysHere, check_url
from brimful.client.settings import Settings, read_settings
from brimful.errors import BadInput, BrimfulError, NotFound, Refused, Said, WorldFailed
from brimful.language import Plain, Quoted, os_words, say, tongue, verbatim
from brimful.language.printable import printable
from brimful.language.sentence import Retold

if TYPE_CHECKING:  # the shapes take time to build, and only a type checker needs them
    from brimful.client import answers, checks, cloud_answers, price_answers, queue_answers, reserve_answers
    from brimful.client.pack import Pack
    from brimful.client.policy_answers import PolicyAnswer

TIMEOUT_S = 30
UPLOAD_S = 600
BY_STATUS: dict[int, type[BrimfulError]] = {
    400: BadInput,
    401: Refused,
    403: Refused,
    404: NotFound,
    409: Refused,
    413: BadInput,
    422: BadInput,
}


class Client:
    """One server. Found by BRIMFUL_URL, otherwise by what the server holding the data folder wrote there.

    Nothing of ours (token, script, environment) is sent before the server has proven its identity: by its
    certificate or, without one, by what only the server that made our token knows about it. A server that has
    ended leaves its address behind, and anyone may listen there next.
    """

    def __init__(self, settings: Settings | None = None) -> None:
        self._settings = settings or read_settings()
        named = os.environ.get("BRIMFUL_URL", "").rstrip("/")
        found = Announced() if named else announced(self._settings)
        self.url = named or found.url or f"http://{self._settings.host}:{self._settings.port}"
        self._asks_a_folder = not named and not found.url and bool(os.environ.get("BRIMFUL_DATA"))
        self._ended_url = "" if named or found.url else _written(self._settings)[0].url
        check_url(self.url)
        # No proxy from the environment belongs between us and the server, and our servers never redirect.
        handlers: list[BaseHandler] = [ProxyHandler({}), StaysHere(), ProvenHandler(self._token)]
        if found.certificate:
            from brimful.client.pinning import PinnedHandler  # ssl takes time to load, and few need it

            handlers.append(PinnedHandler(found.certificate))
        self._opener = build_opener(*handlers)

    # -- jobs ------------------------------------------------------------------------------------------

    def submit(self, command: Sequence[str], *, folder: str, key: str = "", **more: Any) -> answers.JobAnswer:  # noqa: ANN401
        """Submit a command; `more` are the other fields of `POST /v1/jobs`.

        With a `key` it can be sent again if nobody knows whether it arrived: it creates no second job.
        """
        body = {"command": list(command), "folder": folder, **more}
        return cast("answers.JobAnswer", self.post("/v1/jobs", body, _keyed(key)))

    def check_job(self, job: Mapping[str, object]) -> checks.CheckAnswer:
        """What would happen to this job, given as for `submit`. Raises what a submit would be refused for."""
        found = cast("checks.CheckAnswer", self.post("/v1/jobs/check", {"job": job}))
        for problem in found["problems"]:
            raise _error(problem["status"], dict(problem))
        return found

    def jobs(
        self,
        *,
        limit: int = 200,
        phase: Sequence[str] = (),
        tenant: str | None = None,
        array: str | None = None,
        fold: bool = False,
    ) -> list[answers.JobAnswer]:
        """The newest jobs, as many as requested; with `fold` one task stands for its array."""
        found: list[answers.JobAnswer] = []
        asked = {"phase": list(phase), "tenant": tenant, "array": array, "fold": "true" if fold else ""}
        query: dict[str, object] = {name: value for name, value in asked.items() if value}
        while len(found) < limit:
            page = self.get("/v1/jobs", limit=min(limit - len(found), 1000), **query)
            shown = {job["array"] for job in found if job["array_tasks"]} if fold else ()
            found += [job for job in page["jobs"] if job["array"] not in shown]
            if page["next_cursor"] is None:
                break
            query["cursor"] = page["next_cursor"]
        return found

    def job(self, job: str) -> answers.JobAnswer:
        return cast("answers.JobAnswer", self.get(_path("jobs", job)))

    def why(self, job: str) -> answers.WhyAnswer:
        return cast("answers.WhyAnswer", self.get(_path("jobs", job, "/why")))

    def cancel(self, job: str) -> answers.JobAnswer:
        return cast("answers.JobAnswer", self.post(_path("jobs", job, "/cancel")))

    def hold(self, job: str, reason: str = "") -> answers.JobAnswer:
        return cast("answers.JobAnswer", self.post(_path("jobs", job, "/hold"), {"reason": reason}))

    def release(self, job: str) -> answers.JobAnswer:
        return cast("answers.JobAnswer", self.post(_path("jobs", job, "/release")))

    def move(self, job: str, site: str) -> answers.JobAnswer:
        return cast("answers.JobAnswer", self.post(_path("jobs", job, "/move"), {"site": site}))

    def log(
        self, job: str, *, lease: str | None = None, rank: int = 0, offset: int = 0, limit: int = 1 << 16
    ) -> answers.LogAnswer:
        """A piece of the log of a lease, by default the newest; if that has no more, of the next one."""
        query: dict[str, object] = {"offset": offset, "limit": limit}
        query |= {"lease": lease} if lease is not None else {}
        query |= {"rank": rank} if rank else {}  # an older server knows only the first
        return cast("answers.LogAnswer", self.get(_path("jobs", job, "/log"), **query))

    def log_stream(self, job: str, *, offset: int = 0) -> Iterator[tuple[str, dict[str, Any]]]:
        """("log", {lease, text, next_offset}) as it grows, and ("over", {phase}) at the end."""
        return self.stream(_path("jobs", job, "/log/stream"), offset=offset)

    def keep_code(self, pack: Pack, *, tenant: str | None = None) -> None:
        """Store this archive on the server for jobs to run in; sent only if it is not there yet."""
        path = self._at(_path("code", pack.code), {"tenant": tenant} if tenant else {})
        try:
            self._call(Request(path))  # noqa: S310
        except NotFound:
            sent = {"content-type": "application/octet-stream", "content-length": str(pack.size)}
            self._call(Request(path, data=pack.file, headers=sent, method="POST"), timeout_s=UPLOAD_S)  # noqa: S310

    # -- the fleet -------------------------------------------------------------------------------------

    def fleet(self) -> answers.FleetAnswer:
        return cast("answers.FleetAnswer", self.get("/v1/fleet"))

    def queues(self) -> list[queue_answers.QueueAnswer]:
        return cast("list[queue_answers.QueueAnswer]", self.get("/v1/queues")["queues"])

    def set_queues(self, queues: Sequence[Mapping[str, object]]) -> list[queue_answers.QueueAnswer]:
        """Replace all queues with quotas and limits, each as `PUT /v1/queues` describes it."""
        done = self._send("PUT", "/v1/queues", {"queues": list(queues)}, {})
        return cast("list[queue_answers.QueueAnswer]", done["queues"])

    def check_queues(self, queues: Sequence[Mapping[str, object]]) -> list[queue_answers.QueueCheckAnswer]:
        """What has no effect; raises what `set_queues` would be refused for. Changes nothing."""
        done = self.post("/v1/queues/check", {"queues": list(queues)})
        return cast("list[queue_answers.QueueCheckAnswer]", done["queues"])

    def policy(self) -> PolicyAnswer:
        """The active policy, and what others would have done (operators)."""
        return cast("PolicyAnswer", self.get("/v1/policy"))

    def rehearse(self, *, days: int = 1, policies: Sequence[str] = ()) -> PolicyAnswer:
        """Start to rehearse the server's last days; `policy` has the result once it is not `running`."""
        body = {"days": days, "policies": list(policies)}
        return cast("PolicyAnswer", self.post("/v1/policy/rehearse", body))

    def adopt(self, policy: str) -> PolicyAnswer:
        return cast("PolicyAnswer", self.post("/v1/policy/adopt", {"policy": policy}))

    def prices(self, *, since_s: int | None = None) -> price_answers.PricesAnswer:
        """Every pool's price; with `since_s`, market pools include their history from then on."""
        query = {} if since_s is None else {"since_s": since_s}
        return cast("price_answers.PricesAnswer", self.get("/v1/prices", **query))

    def forecast(self, *, hours: int = 24, limit_microusd: int | None = None) -> price_answers.ForecastAnswer:
        """The load of every pool, hour by hour; how long spot lasts; whether prices stay at or below limits.

        Each with scores of earlier forecasts. `limit_microusd`: also the chance for this price per GPU-hour.
        """
        found = self.get("/v1/forecast", hours=hours, limit_microusd=limit_microusd)
        return cast("price_answers.ForecastAnswer", found)

    def bid(self, job: str, limit_microusd_per_gpu_hour: int | None) -> answers.JobAnswer:
        body = {"limit_microusd_per_gpu_hour": limit_microusd_per_gpu_hour}
        return cast("answers.JobAnswer", self.post(_path("jobs", job, "/bid"), body))

    def spend(self) -> answers.SpendAnswer:
        return cast("answers.SpendAnswer", self.get("/v1/spend"))

    def budgets(self) -> list[answers.BudgetAnswer]:
        return cast("list[answers.BudgetAnswer]", self.get("/v1/budgets")["budgets"])

    def set_budget(self, tenant: str, microusd: int | None, **terms: object) -> answers.BudgetAnswer:
        """`terms`: project, within, period, zone, hard, as in `POST /v1/budgets`."""
        body = {"microusd": microusd, **terms}
        return cast("answers.BudgetAnswer", self.post(_path("budgets", tenant), body))

    def credit(self, tenant: str, microusd: int, reason: str = "") -> answers.BudgetAnswer:
        body: dict[str, object] = {"microusd": microusd, "reason": reason}
        return cast("answers.BudgetAnswer", self.post(_path("budgets", tenant, "/credit"), body))

    def invoice(
        self, *, by: str = "team", tenant: str | None = None, month: str | None = None
    ) -> answers.InvoiceAnswer:
        """`month`: such as 2026-03, in UTC; None: since the first job."""
        given = {"tenant": tenant, "month": month}
        only = {name: value for name, value in given.items() if value is not None}
        return cast("answers.InvoiceAnswer", self.get("/v1/invoice", by=by, **only))

    def spend_days(self, *, by: str = "team", days: int = 28) -> answers.SpendDaysAnswer:
        """`by`: team, user or gpu."""
        return cast("answers.SpendDaysAnswer", self.get("/v1/spend/days", by=by, days=days))

    def reservations(self) -> reserve_answers.ReservationsAnswer:
        """What your tenants have reserved, how the hours were used, and their credits."""
        return cast("reserve_answers.ReservationsAnswer", self.get("/v1/reservations"))

    def cloud(self) -> cloud_answers.CloudAnswer:
        """The machines that were bought, what they cost, and what is left of the spending caps."""
        return cast("cloud_answers.CloudAnswer", self.get("/v1/cloud"))

    def cloud_offers(self) -> list[cloud_answers.OfferAnswer]:
        return cast("list[cloud_answers.OfferAnswer]", self.get("/v1/cloud/offers")["offers"])

    def cloud_check(self) -> list[cloud_answers.ProviderAnswer]:
        """Each provider, and what is wrong with it. Contacts every machine it lists, so it may be slow."""
        return cast("list[cloud_answers.ProviderAnswer]", self.get("/v1/cloud/check")["providers"])

    def cloud_plan(self, job: Mapping[str, object]) -> cloud_answers.CloudPlanAnswer:
        """What would be bought for this job, given as for `submit`. Buys nothing."""
        return cast("cloud_answers.CloudPlanAnswer", self.post("/v1/cloud/plan", dict(job)))

    def quote_reservation(self, **window: object) -> reserve_answers.ReserveQuoteAnswer:
        """`gpu`, `gpus`, `hours`, and optionally `site`, `tier` and `start_s`."""
        return cast("reserve_answers.ReserveQuoteAnswer", self.post("/v1/reservations/quote", window))

    def buy_reservation(self, *, key: str = "", **window: object) -> reserve_answers.ReservationAnswer:
        """The same, with `tenant`, `at_most_microusd_per_gpu_hour` and `granted` (a quota, from an operator).
        Spends money, once per `key`."""
        done = self.post("/v1/reservations", window, _keyed(key))
        return cast("reserve_answers.ReservationAnswer", done)

    def change_reservation(
        self, name: str, verb: Literal["pause", "resume", "return"], gpus: int | None = None
    ) -> reserve_answers.ReservationAnswer:
        done = self.post(_path("reservations", name, f"/{verb}"), {"gpus": gpus})
        return cast("reserve_answers.ReservationAnswer", done)

    def quote_extension(self, name: str, hours: int) -> reserve_answers.ReserveQuoteAnswer:
        done = self.post(_path("reservations", name, "/quote"), {"hours": hours})
        return cast("reserve_answers.ReserveQuoteAnswer", done)

    def extend_reservation(
        self, name: str, hours: int, at_most_microusd_per_gpu_hour: int | None = None, *, key: str = ""
    ) -> reserve_answers.ReservationAnswer:
        """Spends money, once per `key`."""
        body = {"hours": hours, "at_most_microusd_per_gpu_hour": at_most_microusd_per_gpu_hour}
        done = self.post(_path("reservations", name, "/extend"), body, _keyed(key))
        return cast("reserve_answers.ReservationAnswer", done)

    def drain(self, node: str, reason: str = "") -> answers.DrainAnswer:
        return cast("answers.DrainAnswer", self.post(_path("nodes", node, "/drain"), {"reason": reason}))

    def resume(self, node: str) -> answers.DrainAnswer:
        return cast("answers.DrainAnswer", self.post(_path("nodes", node, "/resume")))

    def events(self, *, after: int = 0, limit: int = 200) -> answers.EventsAnswer:
        return cast("answers.EventsAnswer", self.get("/v1/events", after=after, limit=limit))

    def event_stream(self, *, after: int = 0) -> Iterator[tuple[str, answers.EventAnswer]]:
        """(kind, event) from that position in the log on, for as long as the server lives."""
        return cast(
            "Iterator[tuple[str, answers.EventAnswer]]", self.stream("/v1/events/stream", after=after)
        )

    # -- access ----------------------------------------------------------------------------------------

    def tokens(self) -> answers.TokensAnswer:
        return cast("answers.TokensAnswer", self.get("/v1/tokens"))

    def add_token(self, name: str, *, tenant: str, role: str, **lasts: int | None) -> answers.NewTokenAnswer:
        """`lasts` may contain `ttl_s`; without it the server decides, and never longer than our own token."""
        body: dict[str, object] = {"name": name, "tenant": tenant, "role": role, **lasts}
        return cast("answers.NewTokenAnswer", self.post("/v1/tokens", body))

    def revoke_token(self, token: str) -> answers.TokenAnswer:
        return cast("answers.TokenAnswer", self.post(_path("tokens", token, "/revoke")))

    def users(self) -> answers.UsersAnswer:
        """Users of the teams you administer."""
        return cast("answers.UsersAnswer", self.get("/v1/users"))

    def set_role(self, user: str, *, tenant: str, role: str | None) -> answers.UserAnswer:
        """None: the user leaves the team."""
        body: dict[str, object] = {"tenant": tenant, "role": role}
        return cast("answers.UserAnswer", self.post(_path("users", user), body))

    def audit(self) -> answers.AuditAnswer:
        """Recent actions, newest first."""
        return cast("answers.AuditAnswer", self.get("/v1/audit"))

    def usage_audit(self, *, from_s: int | None = None, to_s: int | None = None) -> answers.UsageAuditAnswer:
        """Where paid GPU time went; by default in the last 30 days."""
        asked = {name: value for name, value in (("from_s", from_s), ("to_s", to_s)) if value is not None}
        return cast("answers.UsageAuditAnswer", self.get("/v1/audit/usage", **asked))

    def notifications(self) -> answers.NotificationsAnswer:
        return cast("answers.NotificationsAnswer", self.get("/v1/notifications"))

    def add_notification(
        self, target: str, *, on: Sequence[str] = (), team: bool = False
    ) -> answers.NewNotificationAnswer:
        body: dict[str, object] = {"target": target, "team": team} | ({"on": list(on)} if on else {})
        return cast("answers.NewNotificationAnswer", self.post("/v1/notifications", body))

    def remove_notification(self, notification: str) -> answers.NotificationAnswer:
        path = _path("notifications", notification, "/remove")
        return cast("answers.NotificationAnswer", self.post(path))

    def ticket(self) -> answers.TicketAnswer:
        """A one-time path that opens the console in a browser."""
        return cast("answers.TicketAnswer", self.post("/v1/tickets"))

    # -- HTTP ------------------------------------------------------------------------------------------

    def get(self, path: str, **query: object) -> Any:  # noqa: ANN401 - JSON
        return self._call(Request(self._at(path, query)))  # noqa: S310

    def post(
        self, path: str, body: Mapping[str, object] | None = None, headers: dict[str, str] | None = None
    ) -> Any:  # noqa: ANN401 - JSON
        return self._send("POST", path, body, headers or {})

    def _send(self, verb: str, path: str, body: Mapping[str, object] | None, headers: dict[str, str]) -> Any:  # noqa: ANN401 - JSON
        payload = b"" if body is None else json.dumps(body).encode()
        sent = {"content-type": "application/json", **headers}
        return self._call(Request(f"{self.url}{path}", data=payload, headers=sent, method=verb))  # noqa: S310

    def stream(self, path: str, **query: object) -> Iterator[tuple[str, dict[str, Any]]]:
        """Server-sent events: (event, data), until the server has no more."""
        request = Request(self._at(path, query))  # noqa: S310
        with self._failing_clearly(), self._open(request) as answer:
            kind = ""
            for raw in answer:
                name, _, value = raw.decode("utf-8").rstrip("\n").partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    data = json.loads(value)
                    if kind == "error":
                        said, hint, code = _retold(data)
                        raise WorldFailed(said, hint=verbatim(hint) if hint else None, code=code)
                    yield kind, data

    def _at(self, path: str, query: dict[str, object]) -> str:
        return f"{self.url}{path}{'?' + urlencode(query, doseq=True) if query else ''}"

    def _call(self, request: Request, *, timeout_s: float = TIMEOUT_S) -> Any:  # noqa: ANN401 - JSON
        with self._failing_clearly(), self._open(request, timeout_s=timeout_s) as answer:
            return json.load(answer)["data"]

    def _open(self, request: Request, *, timeout_s: float = TIMEOUT_S) -> Any:  # noqa: ANN401 - urllib's own type
        request.add_header("accept-language", tongue().code)
        if token := self._token():
            request.add_header("authorization", f"Bearer {token}")
        return self._opener.open(request, timeout=timeout_s)

    @contextmanager
    def _failing_clearly(self) -> Iterator[None]:
        try:
            yield
        except HTTPError as error:
            raise _refusal(error) from error
        except (URLError, OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", None) or error
            if "CERTIFICATE_VERIFY_FAILED" in str(reason):
                said = say("client.untrusted_certificate", url=self.url, reason=reason)
                raise WorldFailed(said, code="untrusted_certificate") from error
            why = os_words(reason) if isinstance(reason, OSError) else reason
            said = say("client.no_server", url=self.url, reason=why)
            if self._asks_a_folder:  # the address is a guess then, not worth showing
                said = say("client.no_server_on", data=self._settings.folder)
            elif self._ended_url:
                said = say("client.server_ended", url=self._ended_url, data=self._settings.folder)
            raise WorldFailed(said, code="no_server") from error
        except (ValueError, KeyError, TypeError) as error:
            raise WorldFailed(say("client.not_brimful", url=self.url), code="no_server") from error

    def _token(self) -> str:
        token = os.environ.get("BRIMFUL_TOKEN", "")
        if not token:
            with suppress(OSError, ValueError):  # what is missing is reported later
                token = self._settings.token_file.read_text("utf-8").strip()
        if not token.isascii() or not token.isprintable():
            raise BadInput(say("client.bad_token"))
        return token


def _keyed(key: str) -> dict[str, str]:
    check_key(key)
    return {"idempotency-key": key} if key else {}


def check_key(key: str) -> None:
    """A submission's key must fit into a header."""
    if len(key) > 100 or not (key.isascii() and key.isprintable()) or " " in key:
        raise BadInput(say("client.bad_key", key=Quoted(key[:100])))


class Announced(NamedTuple):
    """What the server that holds our data folder says about itself; empty without one."""

    url: str = ""
    certificate: str = ""  # its SHA-256, if it has one
    policy: str = ""


def announced(settings: Settings) -> Announced:
    """From a living server, not from an old file."""
    found, pid = _written(settings)
    return found if _is_held(settings.lock_file) and _is_alive(pid) else Announced()


def _written(settings: Settings) -> tuple[Announced, int]:
    """What the last server wrote about itself, and its process; it may have died since."""
    try:
        facts = json.loads(settings.server_file.read_text(encoding="utf-8"))
        found = Announced(str(facts["url"]), str(facts.get("certificate", "")), str(facts.get("policy", "")))
        return found, int(facts["pid"])
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return Announced(), 0


def _is_held(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
            return False
    except BlockingIOError:
        return True
    except OSError:
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (OSError, OverflowError):
        return False
    return pid > 0


def _path(kind: str, name: str, rest: str = "") -> str:
    if not name or "/" in name:  # it would be another path
        raise NotFound(say("client.not_a_name", name=Quoted(name[:80])))
    return f"/v1/{kind}/{quote(name, safe='')}{rest}"


def _retold(told: dict[str, Any]) -> tuple[Said, str, str]:
    """What happened, what to do, and the code of an error from a server."""
    problem, hint, code = (printable(str(told[key])) for key in ("problem", "hint", "code"))
    return Retold(problem, dict(told["reason"])) if told.get("reason") else verbatim(problem), hint, code


def _refusal(error: HTTPError) -> BrimfulError:
    """The server's own words, as the same class of error."""
    try:
        return _error(error.code, json.load(error)["error"])
    except (ValueError, KeyError, TypeError):
        said = say("client.server_answered", status=Plain(error.code), reason=error.reason)
        way_out = say("client.hint_run_as_owner") if error.code == 401 else None
        return BY_STATUS.get(error.code, WorldFailed)(said, hint=way_out, code="server_failed")


def _error(status: int, told: dict[str, Any]) -> BrimfulError:
    said, hint, code = _retold(told)
    way_out = verbatim(hint) if hint else None
    if status == 401 and not hint:
        way_out = say("client.hint_run_as_owner")
    return BY_STATUS.get(status, WorldFailed)(said, hint=way_out, code=code)
