"""How a runner exits: not killed by a signal once its job is over, and never without a record of the end."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.engines import watch

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only there is the runner complete")

# On a busy machine Python takes seconds to exit, and it has reset its signal handlers by then.
SLOW_EXIT = """
import time
class Slow:
    def __del__(self, sleep=time.sleep):
        sleep(2.5)
slow = Slow()
"""
TERM_AFTER_SENDING = """
import os, signal
from brimful.adapters.objects.carriage import Carriage
finish = Carriage.finish
def finish_and_hear(self):
    finish(self)
    os.kill(os.getpid(), signal.SIGTERM)
Carriage.finish = finish_and_hear
"""
TERM_AT_EXIT = """
import os, signal
class Late:
    def __del__(self, kill=os.kill, pid=os.getpid(), number=signal.SIGTERM):
        kill(pid, number)
late = Late()
"""
RUN = """
import sys
from pathlib import Path
from brimful.adapters.engines import runner
sys.exit(runner.main(Path(sys.argv[1])))
"""


BEFORE = {"slow exit": SLOW_EXIT, "signal after sending": TERM_AFTER_SENDING, "signal at exit": TERM_AT_EXIT}


@pytest.mark.parametrize("before", BEFORE.values(), ids=BEFORE.keys())
def test_a_runner_whose_job_is_over_exits_with_0_and_has_recorded_the_end(
    tmp_path: Path, before: str
) -> None:
    order: dict[str, Any] = {
        "command": ["true"],
        "folder": str(tmp_path),
        "env": {"PATH": "/usr/bin:/bin", "BRIMFUL_CHECKPOINT_DIR": str(tmp_path / "checkpoints")},
        "checkpoints": str(tmp_path / "checkpoints"),
        "hears_engine": True,
    }
    (tmp_path / "order.json").write_text(json.dumps(order))
    done = subprocess.run(
        [sys.executable, "-c", before + RUN, tmp_path], capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stderr) == (0, "")
    ended = json.loads((tmp_path / "ended.json").read_text())
    assert (ended["exit_code"], ended["told"], ended["sent_away"]) == (0, False, False)


class Group:
    pid = 0

    def is_over(self) -> bool:
        return False


def test_a_look_while_the_runner_listens_does_not_listen_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Alarms interrupt it: with a log that grows fast, ten come before it knows who was signalled."""
    asked: list[str] = []

    class Ear:
        def has_heard(self) -> bool:
            asked.append("ear")
            runs._look()
            return True

    for module, name in ((signal, "signal"), (signal, "setitimer"), (watch, "signal_group")):
        monkeypatch.setattr(module, name, lambda *_: None)
    monkeypatch.setattr(watch, "Ear", Ear)
    (tmp_path / watch.SIGNALLED).touch()
    runs = watch.Watch(tmp_path, {"gang": str(tmp_path), "hears_engine": True})
    runs.over(Group())
    runs._look()
    assert asked == ["ear"]
    assert runs.told
