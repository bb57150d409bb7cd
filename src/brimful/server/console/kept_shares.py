"""What share of the paid GPU time did work that was kept: for Home, from the audit."""

from __future__ import annotations

import threading
from typing import Any

from brimful.server.auth import Principal
from brimful.server.service.hindsight import Hindsight
from brimful.units import DAY_S, HOUR_S

SPANS = {"day": DAY_S, "week": 7 * DAY_S}
MOST_TEAMS = 50


class KeptShares:
    """Up to the last full hour: open tabs ask for an audit once an hour, not every two seconds."""

    def __init__(self, hindsight: Hindsight) -> None:
        self._hindsight, self._lock = hindsight, threading.Lock()
        self._known: dict[frozenset[str] | None, tuple[int, dict[str, Any]]] = {}

    def of(self, who: Principal) -> dict[str, Any]:
        """The audit's headline by span; a span is missing until it is counted, or if nothing was paid for."""
        tenants, end_s = who.tenants(), self._hindsight.now_s() // HOUR_S * HOUR_S
        with self._lock:
            known_s, known = self._known.get(tenants, (-1, {}))
            if known_s == end_s:
                return known
            asked = {
                span: self._hindsight.so_far(start_s=max(0, end_s - span_s), end_s=end_s, tenants=tenants)
                for span, span_s in SPANS.items()
            }
            found = {
                span: report["headline"]
                for span, (report, _) in asked.items()
                if report is not None and report["headline"]["kept"]["share"] is not None
            }
            if not any(counting for _, counting in asked.values()):
                if len(self._known) >= MOST_TEAMS:
                    self._known.clear()
                self._known[tenants] = (end_s, found)
            return found
