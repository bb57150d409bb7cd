"""Why a job failed, as far as the end of its log tells: Fit's answer to that text (`POST /v1/fit`)."""

from __future__ import annotations

import logging
from typing import Any

from brimful.errors import BrimfulError
from brimful.fleet.state import JobState
from brimful.language import tongue
from brimful.server.fitting.fitter import Fitter
from brimful.server.service.reader import Reader
from brimful.server.views.logs import log_piece

log = logging.getLogger("brimful")

END_BYTES = 1 << 15
MOST_KEPT = 200
LINES, LINE_CHARS = 3, 300  # of a log that nobody has an explanation for


class WhyFailed:
    """Asked once per failed lease and language: a finished lease does not change."""

    def __init__(self, reader: Reader, fitter: Fitter) -> None:
        self._reader, self._fitter = reader, fitter
        self._known: dict[tuple[str, str], dict[str, Any] | None] = {}

    def __call__(self, state: JobState) -> dict[str, Any] | None:
        """None if it has not failed or has printed nothing; the end of its log if the cause is unknown."""
        if state.phase != "failed" or not state.leases:
            return None
        key = (state.leases[-1].lease, tongue().code)
        if key in self._known:
            return self._known.get(key)
        try:
            found = self._read(state)
        except BrimfulError as error:  # its page is there without it
            log.info("no explanation for %s: %s", state.job.job, error.problem)
            if error.code == "too_many":  # of who asks at the same time: it says nothing of this log
                return None
            found = None
        if len(self._known) >= MOST_KEPT:
            self._known.clear()
        self._known[key] = found
        return found

    def _read(self, state: JobState) -> dict[str, Any] | None:
        codes = state.leases[-1].exit_codes
        rank = next((i for i, code in enumerate(codes) if code), 0)
        asked: dict[str, Any] = {"config": "", "model": "", "gpus": (), "settings": (), "other_bytes": None}
        piece = log_piece(self._reader, state.job.job, None, offset=-END_BYTES, limit=END_BYTES, rank=rank)
        end = piece["text"].replace("\0", "")
        if not end.strip():
            return None
        # A team's own logs leave room for others: each may take the whole time of an answer.
        found = self._fitter.ask(asker=f"logs of {state.job.tenant}", text=end, **asked)
        answer: dict[str, Any] | None = (found["explanation"] or {}).get("answer")
        if answer is not None:
            return {**answer, "log_end": []}
        lines = [line[:LINE_CHARS] for line in end.splitlines() if line.strip()]
        return {"says": [], "change": [], "log_end": lines[-LINES:]}
