"""Scheduled backups, each restored into a scratch database before it counts.

Made in a separate process: reading and checking the whole log would keep the scheduler's process busy.
"""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

from brimful.client.settings import Settings

log = logging.getLogger("brimful")

PATTERN = "brimful-*.zip"
LOOK_S = 60.0
AGAIN_S = 3600  # after a failure
LONGEST_S = 6 * 3600


class Backups:
    def __init__(self, settings: Settings, *, clock: Callable[[], float] = time.time) -> None:
        self._settings, self._clock = settings, clock
        self._folder = Path(settings.backup_folder)
        self._began_s, self._tried_s = clock(), float("-inf")
        self.period_s = settings.backup_hours * 3600

    def look(self) -> None:
        """Make one if it is due. Only verified backups get their name, so the newest is good."""
        is_due = not self._made() or self.age_s() >= self.period_s
        if is_due and self._clock() - self._tried_s >= min(AGAIN_S, self.period_s):
            self._tried_s = self._clock()
            self._make()

    def age_s(self) -> float:
        """Since the last verified backup, or since the server started if there is none."""
        made = self._made()
        return max(0.0, self._clock() - (made[-1].stat().st_mtime if made else self._began_s))

    def _made(self) -> list[Path]:
        return sorted(self._folder.glob(PATTERN))

    def _make(self) -> None:
        stamp = datetime.fromtimestamp(self._clock(), UTC).strftime("%Y%m%dT%H%M%SZ")
        target = self._folder / f"brimful-{stamp}.zip"
        settings = self._settings
        # In the environment, which `ps` does not show: a database URL may contain a password.
        env = {
            **os.environ,
            "BRIMFUL_DATA": settings.data,
            "BRIMFUL_DATABASE": settings.database,
            "BRIMFUL_ENGINES": settings.engines,
        }
        command = [sys.executable, "-P", "-c", "from brimful.cli.main import main; raise SystemExit(main())"]
        try:
            self._folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            done = subprocess.run(
                [*command, "admin", "backup", str(target)],
                env=env,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=LONGEST_S,
                check=False,
            )
            failed = (done.stderr.strip() or f"exit code {done.returncode}") if done.returncode else ""
        except (OSError, subprocess.TimeoutExpired) as error:
            failed = str(error)
        if failed:
            log.error("the backup %s failed: %s", target, failed[-500:])
            return
        log.info("backup %s made and verified", target)
        for old in self._made()[: -settings.backups_kept]:
            old.unlink(missing_ok=True)
