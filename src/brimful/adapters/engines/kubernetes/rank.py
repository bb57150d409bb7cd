"""One rank of a lease, as its Pod runs it: assemble its order, then become its runner.

order/     what the server ordered (Secrets): order.json, and code.0, code.1, … with the job's packed code
told/      notice: until when it may stay (a Pod annotation, delivered by the kubelet)
lease/     the folder of the runner (runner.py)
end        what the kubelet tells the server when the rank is over
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from brimful.adapters.engines import runner, samples
from brimful.adapters.engines.lease_folders import rank_env
from brimful.adapters.files import read_json, reserve, write_json
from brimful.adapters.objects.carriage import read_carried
from brimful.errors import BrimfulError

LOOK_S = 1.0
SAMPLE_S = 5.0  # between two samples
SAMPLE = b"\x1ebrimful-sample "  # marks a sample, even in the middle of a line from the job
LINE_BYTES = 4096  # a sample is written in one piece of at most this size, or not at all
END_BYTES = 4096  # the kubelet's limit for a termination message
CODE = "code.tar"
NO_END = 125  # nobody knows how it ended
# Variables that the cluster puts into every container and that the job does not need.
OURS = ("KUBERNETES_", "BRIMFUL_GPUS")


def main(here: Path) -> int:
    folder = here / "lease"
    order = read_json(here / "order" / "order.json")
    assert order is not None, "the Pod has no order"
    reserve(folder / "ended.json")
    if order["code"]:
        _join(sorted((here / "order").glob("code.*"), key=lambda path: int(path.suffix[1:])), folder / CODE)
    write_json(folder / "order.json", completed(order, here, dict(os.environ)))
    threading.Thread(target=_bring_notices, args=(here / "told" / "notice", folder), daemon=True).start()
    threading.Thread(target=_print_samples, args=(folder,), daemon=True).start()
    runner.main(folder)
    end = last_words(folder)
    (here / "end").write_text(json.dumps(end)[:END_BYTES])
    code = end.get("exit_code")
    return code if isinstance(code, int) and 0 <= code <= 255 else NO_END


def _join(pieces: Sequence[Path], into: Path) -> None:
    with into.open("wb") as whole:
        for piece in pieces:
            whole.write(piece.read_bytes())


def completed(order: dict[str, Any], here: Path, given: dict[str, str]) -> dict[str, Any]:
    """Adds what only the Pod knows: its rank, its image's environment, its paths."""
    folder, rank, ranks = here / "lease", int(given["BRIMFUL_RANK"]), int(given["BRIMFUL_WORLD_SIZE"])
    image = {key: value for key, value in given.items() if not key.startswith(OURS)}
    path = order["env"].get("PATH") or image.get("PATH", os.defpath)
    env = {
        **image,
        **order["env"],
        # brimful's own Python is last on the path, so that `python` exists even if the image has none.
        "PATH": f"{path}{os.pathsep}{Path(sys.executable).parent}",
        "BRIMFUL_NOTICE": str(folder / "notice.json"),
        "BRIMFUL_SAMPLES": str(folder / samples.NAME),
        **({"WORLD_SIZE": str(ranks)} if ranks > 1 else {}),
    }
    # The kubelet shows the container only its own GPUs, numbered from 0.
    env.setdefault("CUDA_VISIBLE_DEVICES", ",".join(map(str, range(int(given["BRIMFUL_GPUS"])))))
    checkpoints = order["checkpoints"] or str(folder / "checkpoints")
    env["BRIMFUL_CHECKPOINT_DIR"] = checkpoints
    work = Path(order["folder"] or "/")
    made = {
        **order,
        "env": env,
        "checkpoints": checkpoints,
        "folder": str(work if work.is_dir() else Path.cwd()),
        "code": None,
        "ranks": [rank_env(rank, ranks)],
        "prints": True,
    }
    if order["code"]:
        made["code"] = {"archive": str(folder / CODE), "code": order["code"]}
        made["folder"] = str(folder / runner.WORK)
    if rank and order["store"]:
        # The first rank sends; the others fetch what they find.
        made |= {"store": "", "checkpoints_from": order["checkpoints_from"] or order["store"]}
    return made


def last_words(folder: Path) -> dict[str, Any]:
    ended = read_json(folder / "ended.json") or {}
    started, child = read_json(folder / "started.json") or {}, read_json(folder / "child.json") or {}
    moved = read_carried(folder).moved_bytes
    said = {
        "started_s": started.get("at_s"),
        "resumes_s": child.get("resumes_s"),
        "moved_bytes": moved,
        **{key: ended.get(key) for key in ("at_s", "exit_code", "sealed_s", "told", "problem")},
    }
    return said if len(json.dumps(said)) <= END_BYTES else {**said, "problem": None}


def _bring_notices(told: Path, folder: Path) -> None:
    brought = ""
    wait = threading.Event()
    while not wait.wait(LOOK_S):
        try:
            found = told.read_text()
        except OSError:
            found = ""
        if found == brought or (folder / "stop.json").exists():
            continue
        brought = found
        try:
            if found:
                write_json(folder / "notice.json", json.loads(found), mode=0o644)
            else:
                (folder / "notice.json").unlink(missing_ok=True)
        except (OSError, ValueError):
            continue


def _print_samples(folder: Path) -> None:
    """The server sees only what a Pod prints, so Meter samples are printed too."""
    printed = b""
    wait = threading.Event()
    while not wait.wait(SAMPLE_S):
        with contextlib.suppress(BrimfulError, OSError, ValueError):
            found = samples.read_sample(folder) or b""
            line = SAMPLE + json.dumps(json.loads(found)).encode() + b"\n"
            if found != printed and len(line) <= LINE_BYTES:
                os.write(sys.stdout.fileno(), line)
                printed = found


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
