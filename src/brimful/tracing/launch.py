"""Start a script under trace in a child process, wait for it within a limit, and always end it.

The script is the user's own and is meant to run: tracing is running it. It gets its own process group, no
standard input and no GPU, and all processes it started are ended with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from brimful.errors import BadInput, NotFound, Refused, WorldFailed
from brimful.language import Number, Plain, Sentence, Several, say, tongue
from brimful.language.record import said_in

# Beyond the script's own limit, which the child enforces: to start, load PyTorch, build the shim.
START_S = 120
MARK = "BRIMFUL_TRACE"  # in the environment of every process a traced script starts
_TAIL_LINES = 12
_ERRORS = {1: Refused, 2: BadInput, 3: WorldFailed}


def trace_script(
    script: Path,
    arguments: Sequence[str],
    *,
    gpu: str,
    steps: int,
    limit_s: float,
    settings: str | None = None,
    rough: bool = False,
    world: int = 1,
) -> dict[str, Any]:
    """The `Trace` of a script, as its dictionary."""
    if not script.is_file():
        raise NotFound(say("tracing.no_script", script=script))
    with tempfile.TemporaryDirectory(prefix="brimful-trace-") as name:
        folder = Path(name)
        request = {
            "script": str(script),
            "arguments": list(arguments),
            "gpu": gpu,
            "steps": steps,
            "settings": settings,
            "rough": rough,
            "limit_s": limit_s,
            "language": tongue().code,
            "answer": str(folder / "answer.json"),
            "stacks": str(folder / "stacks"),
        }
        (folder / "request.json").write_text(json.dumps(request), encoding="utf-8")
        with (folder / "output").open("wb") as output:
            status = _run(folder, output, world=world, limit_s=limit_s)
        return _answer(folder, script, status, limit_s)


def _run(folder: Path, output: Any, *, world: int, limit_s: float) -> int | None:
    """The child's exit status, or None if it had to be ended."""
    command = [sys.executable, "-m", "brimful.tracing.child", str(folder / "request.json")]
    environment = {**_environment(world), MARK: folder.name}
    child = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT, env=environment,
        start_new_session=True,
    )  # fmt: skip
    try:
        return child.wait(limit_s + START_S)
    except subprocess.TimeoutExpired:
        return None
    finally:
        # The whole group, even if the child is gone: what it started must not outlive the answer.
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        end_marked(MARK, folder.name)


def end_marked(variable: str, mark: str) -> None:
    """End processes that left the group (setsid, a daemon): every descendant has inherited the mark."""
    wanted = f"{variable}={mark}".encode()
    for process in Path("/proc").glob("[0-9]*"):
        # Other users' processes cannot be read, and some are gone by the time we look.
        with suppress(OSError):
            if wanted in (process / "environ").read_bytes().split(b"\0"):
                os.kill(int(process.name), signal.SIGKILL)


def _environment(world: int) -> dict[str, str]:
    environment = {**os.environ, "CUDA_VISIBLE_DEVICES": "", "PYTHONUNBUFFERED": "1"}
    environment.setdefault("WANDB_MODE", "disabled")  # a rehearsal is not a run to log
    # transformers copies weights to the card on its own threads, where PyTorch does not know our fake one
    environment["HF_DEACTIVATE_ASYNC_LOAD"] = "1"
    if world > 1:
        ranks = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world), "LOCAL_WORLD_SIZE": str(world)}
        environment |= ranks | {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29500"}
    return environment


def _answer(folder: Path, script: Path, status: int | None, limit_s: float) -> dict[str, Any]:
    path = folder / "answer.json"
    if path.exists():
        answer = json.loads(path.read_text(encoding="utf-8"))
        if answer["ok"]:
            return answer["data"]  # type: ignore[no-any-return]
        error = answer["error"]
        reason, hint = said_in(error["reason"]), _with_tail(said_in(error["hint"]) or "", folder)
        assert reason is not None
        raise _ERRORS[error["exit_code"]](reason, hint=hint, code=error["code"])
    if status is None or (folder / "stacks").stat().st_size:
        place = _place(folder, script)
        raise WorldFailed(
            say("tracing.too_slow", name=script.name, limit_s=Number(limit_s), place=place),
            hint=_with_tail(say("tracing.hint_raise_limit_or_smaller_loop"), folder),
            code="too_slow",
        )
    if status < 0:
        raise WorldFailed(
            say("tracing.script_aborted", name=script.name, signal=signal.Signals(-status).name),
            hint=_with_tail(say("tracing.hint_extension_or_op_rough"), folder),
            code="script_aborted",
        )
    raise BadInput(
        say("tracing.script_left_early", name=script.name, status=Plain(status)),
        hint=_with_tail(say("tracing.hint_does_it_run_alone"), folder),
        code="script_failed",
    )


def _with_tail(hint: object, folder: Path) -> Several:
    """And the last lines the script printed."""
    with suppress(OSError):
        lines = (folder / "output").read_bytes()[-20_000:].decode("utf-8", "replace").splitlines()
        shown = [f"  {line[:200]}" for line in lines[-_TAIL_LINES:] if line.strip()]
        if shown:
            return Several((hint, say("tracing.last_words"), "\n".join(shown)), between="")
    return Several((hint,))


def _place(folder: Path, script: Path) -> Sentence | str:
    """Where the child was when its time was over: the innermost line of the script itself."""
    with suppress(OSError):
        for line in (folder / "stacks").read_text(encoding="utf-8").splitlines():
            if script.name in line and ", line " in line:
                number = line.split(", line ")[1].split()[0]
                return say("tracing.at_place", file=script.name, line=Plain(number))
    return ""
