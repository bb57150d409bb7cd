"""A cloud's notice that it takes a machine back, read on that machine: one answer for every cloud.

    aws       spot/instance-action of the instance metadata (version 2), two minutes before
    gcp       instance/preempted of the metadata server, half a minute before
    azure     Preempt and Terminate among the scheduled events, half a minute before
    mithril   a file that appears five minutes before, and disappears if the machine may stay after all

Each as its vendor documents it. None has been seen on a real machine of that cloud: the tests check these
readers against the documented answers.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.error import HTTPError
from urllib.request import ProxyHandler, Request, build_opener

from brimful.job import read_plain

ANSWER_S = 2.0
MOST_BYTES = 1 << 16
LINK_LOCAL = "http://169.254.169.254"
AT = {
    "aws": LINK_LOCAL,
    "gcp": "http://metadata.google.internal",
    "azure": LINK_LOCAL,
    "mithril": "/opt/mithril/MITHRIL_SIGNAL.yml",
}
TOKEN_S = 21_600
GCP_S, AZURE_S, MITHRIL_S = 30.0, 30.0, 300.0
AZURE_EVENTS, AZURE_NAME = "2020-07-01", "2021-02-01"  # API versions


class Notice(NamedTuple):
    """This machine will be taken back."""

    deadline_s: float
    may_stay: bool = False  # it may still be called off


Ask = Callable[[], Notice | None]


def asker(words: str) -> Ask:
    """A function that asks `CLOUD` or `CLOUD@PLACE`. If it raises, the answer is unknown for now."""
    cloud, _, place = words.partition("@")
    place = place or AT[cloud]
    if cloud == "mithril":
        return lambda: _mithril(Path(place))
    kinds: dict[str, type[_Aws | _Gcp | _Azure]] = {"aws": _Aws, "gcp": _Gcp, "azure": _Azure}
    return kinds[cloud](place.rstrip("/"))


class _Aws:
    def __init__(self, place: str) -> None:
        self._place, self._token = place, ""

    def __call__(self) -> Notice | None:
        if not self._token:
            ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(TOKEN_S)}
            self._token = _get(f"{self._place}/latest/api/token", ttl, method="PUT")
        try:
            text = _get(
                f"{self._place}/latest/meta-data/spot/instance-action",
                {"X-aws-ec2-metadata-token": self._token},
            )
        except HTTPError as error:
            if error.code == 401:  # it has expired
                self._token = ""
            if error.code == 404:
                return None
            raise
        return Notice(_moment(str(_object(text)["time"])))


class _Gcp:
    def __init__(self, place: str) -> None:
        self._place = place
        self._since_s: float | None = None

    def __call__(self) -> Notice | None:
        url = f"{self._place}/computeMetadata/v1/instance/preempted"
        if _get(url, {"Metadata-Flavor": "Google"}).strip().upper() != "TRUE":
            self._since_s = None
            return None
        self._since_s = self._since_s or time.time()
        return Notice(self._since_s + GCP_S)


class _Azure:
    def __init__(self, place: str) -> None:
        self._place, self._name = place, ""
        self._since_s: dict[str, float] = {}

    def __call__(self) -> Notice | None:
        url = f"{self._place}/metadata/scheduledevents?api-version={AZURE_EVENTS}"
        events = _object(_get(url, {"Metadata": "true"})).get("Events") or []
        found = [self._deadline_s(each) for each in events if self._is_ours(each)]
        return Notice(min(found)) if found else None

    def _is_ours(self, event: Mapping[str, Any]) -> bool:
        """Machines in one set also hear of each other's ends."""
        if event.get("EventType") not in ("Preempt", "Terminate"):
            return False
        if not self._name:
            url = f"{self._place}/metadata/instance/compute/name?api-version={AZURE_NAME}&format=text"
            self._name = _get(url, {"Metadata": "true"}).strip()
        return self._name.lower() in (str(each).lower() for each in event.get("Resources") or [])

    def _deadline_s(self, event: Mapping[str, Any]) -> float:
        since_s = self._since_s.setdefault(str(event.get("EventId")), time.time())
        not_before = event.get("NotBefore")  # empty once it has started
        return parsedate_to_datetime(not_before).timestamp() if not_before else since_s + AZURE_S


def _mithril(path: Path) -> Notice | None:
    """Lines of `key: value`; no file while nothing is due."""
    try:
        text = read_plain(path, below=path.parent, most_bytes=MOST_BYTES).decode(errors="replace")
        came_s = path.stat().st_mtime
    except FileNotFoundError:
        return None
    said = {key: value.strip("\"' ") for key, value in re.findall(r"(?m)^\s*(\w+)\s*:\s*(.+?)\s*$", text)}
    if said.get("instance_status") not in ("STATUS_PREEMPTING", "STATUS_RELOCATING"):
        return None  # for another machine of the same order
    end = said.get("end_time", "")
    return Notice(_moment(end) if end else came_s + MITHRIL_S, may_stay=True)


def _moment(text: str) -> float:
    found = datetime.fromisoformat(text)
    return (found if found.tzinfo else found.replace(tzinfo=UTC)).timestamp()


def _object(text: str) -> dict[str, Any]:
    found: dict[str, Any] = {**json.loads(text)}  # TypeError if it is not an object
    return found


def _get(url: str, headers: Mapping[str, str], *, method: str = "GET") -> str:
    # Never through a proxy, which would answer for its own machine.
    asked = Request(url, headers=dict(headers), method=method)  # noqa: S310 - http, set by the operator
    with build_opener(ProxyHandler({})).open(asked, timeout=ANSWER_S) as answer:
        text: str = answer.read(MOST_BYTES).decode(errors="replace")
    return text
