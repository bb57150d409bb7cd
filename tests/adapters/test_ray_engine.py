"""Our side of the pipe to Ray: people who read logs, and answers that no job may be believed about."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from multiprocessing import Pipe
from pathlib import Path
from typing import Any

import pytest

from brimful.adapters.capabilities import LogPiece
from brimful.adapters.engines.ray import engine as ray
from brimful.adapters.engines.ray.bridge import Settings
from brimful.adapters.engines.ray.engine import RayEngine
from brimful.errors import WorldFailed
from tests.builders import a_node, eventually
from tests.patience import PATIENCE_S


def an_engine(folder: Path, answer: Callable[[str], Any]) -> RayEngine:
    """With a bridge that answers each method so."""
    made = RayEngine(folder, Settings("ray:6379", "ours", "~", a_node("n"), {}))
    made._pipe, theirs = Pipe()
    made._told = made._settings

    def bridge() -> None:
        while True:
            try:
                method, _ = theirs.recv()
            except EOFError:
                return
            theirs.send(("ok", answer(method)))

    threading.Thread(target=bridge, daemon=True).start()
    return made


def test_many_who_read_logs_of_a_slow_site_keep_neither_threads_nor_its_worker(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ray, "READ_S", 0.2)
    slow, asked = threading.Event(), list[str]()

    def answer(method: str) -> Any:
        asked.append(method)
        if method == "log":
            assert slow.wait(PATIENCE_S)
        return ([], {}) if method == "nodes" else LogPiece(0, b"here", 4)

    engine = an_engine(tmp_path, answer)
    with ThreadPoolExecutor(40) as people:
        first = people.submit(engine.log, "a.1")
        eventually(lambda: asked == ["log"])
        crowd = [people.submit(engine.log, "a.1") for _ in range(30)]
        for each in crowd:
            with pytest.raises(WorldFailed):
                each.result(PATIENCE_S)
        worker = people.submit(engine.nodes)
        slow.set()
        assert worker.result(PATIENCE_S) == []
        assert first.result(PATIENCE_S).data == b"here"
    assert asked == ["log", "nodes"], "who gave up has asked nothing"
    engine.close()
