"""The far end of the connection: `python -m brimful.adapters.engines.ssh.node` on a machine.

It is told who it is, then answers one request after another until the connection ends. Jobs have their own
runners and keep running without it.
"""

from __future__ import annotations

import base64
import json
import os
import sys
from collections.abc import Callable, Mapping
from typing import Any

from brimful.adapters.engines import lease_folders
from brimful.adapters.engines.agent import NodeAgent
from brimful.adapters.engines.ssh.wire import error_out, node_in, part_in, seen_out
from brimful.errors import BrimfulError
from brimful.language.record import as_record


class Answers:
    """The agent's answers as JSON."""

    def __init__(self, hello: Mapping[str, Any]) -> None:
        self._agent = NodeAgent(hello["folder"], node_in(hello["node"]), hello["settings"])

    def greet(self) -> list[Any]:
        # "our address, our port, its address, its port": the name under which we were reached.
        words = os.environ.get("SSH_CONNECTION", "").split()
        address = words[2] if len(words) == 4 else "127.0.0.1"
        return [*self._agent.greet(), address, as_record(self._agent.under_notice())]

    def start(self, part: dict[str, Any]) -> dict[str, Any] | None:
        error = self._agent.start(part_in(part))
        return None if error is None else error_out(error)

    def begun(self, leases: list[str]) -> list[str]:
        return self._agent.begun(leases)

    def stop(self, leases: list[str], grace_s: int) -> dict[str, Any]:
        return {lease: error_out(error) for lease, error in self._agent.stop(leases, grace_s).items()}

    def give_up(self, lease: str, grace_s: int, why: object) -> None:
        self._agent.give_up(lease, grace_s, why)

    def observe(self, leases: list[str]) -> list[Any]:
        seen, living, _ = self._agent.observe(leases)
        return [[seen_out(each) for each in seen], living]

    def warn(self, lease: str, until_s: int | None) -> None:
        self._agent.warn(lease, until_s)

    def log(self, lease: str, offset: int, limit: int) -> list[Any]:
        piece = self._agent.log(lease, offset, limit)
        return [piece.start, base64.b64encode(piece.data).decode(), piece.size]

    def sample(self, lease: str) -> str | None:
        found = self._agent.sample(lease)
        return None if found is None else base64.b64encode(found).decode()


def main() -> None:
    lease_folders.log.disabled = True  # its complaints are sent as answers
    lines, out = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # nothing else that prints may be taken for an answer

    def answer(found: object) -> None:
        out.write(json.dumps(found).encode() + b"\n")
        out.flush()

    asked: Callable[[], bytes] = lines.readline
    made = Answers(json.loads(asked()))
    answer({"ok": None})
    while line := asked():
        method, arguments = json.loads(line)
        try:
            answer({"ok": getattr(made, method)(*arguments)})
        except BrimfulError as error:
            answer({"failed": as_record(error.said)})
        except Exception as error:  # noqa: BLE001 - reported; the next request may work
            answer({"failed": f"{type(error).__name__}: {error}"[:500]})


if __name__ == "__main__":
    main()
