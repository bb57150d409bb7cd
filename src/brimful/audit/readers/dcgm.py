"""Prometheus text, as DCGM's exporter and brimful's own print it, and range answers of a Prometheus server.

A row without labels names no card, like the dummies of test fixtures, and is counted as such. If a row of
text has no timestamp, the file's time is used.
"""

from __future__ import annotations

import json
import os
import re
import time
import urllib.parse
import urllib.request
from collections.abc import Iterable, Mapping
from errno import ETIMEDOUT
from http.client import HTTPException, IncompleteRead
from typing import Any

from brimful.audit.records import Records
from brimful.audit.series import METRICS, Series, card_of
from brimful.errors import BadInput, WorldFailed
from brimful.language import os_words, say

ROW = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?\s+(\S+)(?:\s+(\d+))?\s*")
LABEL = re.compile(r'([A-Za-z_]\w*)="((?:[^"\\]|\\.)*)"')
DAY_S = 86400
STEP_S = 60
MOST_BYTES = 2**28  # a day of 600 cards has 20 MB
TIMEOUT_S = 60.0  # without receiving a byte
ANSWER_S = 600.0


def is_text(head: str) -> bool:
    return bool(re.search(r"^(# (HELP|TYPE) )?(DCGM_FI_|brimful_gpu_)", head, re.MULTILINE))


def read_text(lines: Iterable[str], records: Records, *, at_s: int) -> None:
    for line in lines:
        if line.startswith("#") or not line.strip():
            continue
        found = ROW.fullmatch(line.rstrip("\n"))
        if found is None:
            records.left_out["bad_sample"] += 1
            continue
        name, labels, value, milliseconds = found.groups()
        if name not in METRICS:
            continue
        when_s = int(milliseconds) // 1000 if milliseconds else at_s
        _add(records, name, dict(LABEL.findall(labels or "")), [(when_s, value)])


def is_matrix(found: Mapping[str, Any]) -> bool:
    data = found.get("data")
    return isinstance(data, dict) and data.get("resultType") == "matrix"


def read_matrix(found: Mapping[str, Any], records: Records, *, name: str = "") -> None:
    for result in found["data"].get("result") or ():
        labels = result.get("metric") or {}
        metric = labels.get("__name__", name)
        if metric in METRICS:
            _add(records, metric, labels, result.get("values") or ())
        else:
            records.left_out["metric_not_known"] += 1


def _add(records: Records, name: str, labels: Mapping[str, str], values: Iterable[Any]) -> None:
    key = card_of(labels)
    if key is None:
        records.left_out["sample_without_card"] += 1
        return
    kind, unit = METRICS[name]
    records.series.setdefault(key, Series()).extend(kind, values, unit)


def fetch(url: str, records: Records, *, start_s: int, end_s: int) -> None:
    """The known metrics of a Prometheus server, a day at a time: a server refuses more points at once."""
    for name in METRICS:
        for from_s in range(start_s, end_s, DAY_S):
            until_s = min(end_s, from_s + DAY_S) - STEP_S
            query = urllib.parse.urlencode({"query": name, "start": from_s, "end": until_s, "step": STEP_S})
            address = f"{url.rstrip('/')}/api/v1/query_range?{query}"
            try:
                found = json.loads(_answer(address))
                if not is_matrix(found):
                    raise ValueError
                read_matrix(found, records, name=name)
            except (OSError, HTTPException) as error:
                reason = getattr(error, "reason", error)  # urllib's own error contains the cause
                shown = os_words(reason) if isinstance(reason, OSError) else reason
                raise WorldFailed(say("audit.prometheus_failed", url=url, error=shown)) from error
            except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
                raise BadInput(say("audit.not_prometheus", url=url)) from error


def _answer(address: str) -> bytes:
    """The whole answer, unless it is too long or too slow."""
    until_s, text = time.monotonic() + ANSWER_S, bytearray()
    with urllib.request.urlopen(address, timeout=TIMEOUT_S) as answer:  # noqa: S310 - http(s) only
        while more := answer.read1(2**20):
            text += more
            if len(text) > MOST_BYTES or time.monotonic() > until_s:
                raise TimeoutError(ETIMEDOUT, os.strerror(ETIMEDOUT))
        if answer.length:
            raise IncompleteRead(b"", answer.length)
    return bytes(text)
