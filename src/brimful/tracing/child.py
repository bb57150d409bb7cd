"""The process in which a user's script is traced: `python -m brimful.tracing.child REQUEST`.

A process of its own because a missed case may abort inside libtorch, and because a script changes whatever it
likes. REQUEST is a JSON file; the answer is written beside it, whole or not at all.
"""

from __future__ import annotations

import ctypes
import faulthandler
import json
import os
import runpy
import signal
import sys
import traceback
from contextlib import suppress
from pathlib import Path
from typing import Any, NoReturn

from brimful.errors import BadInput, BrimfulError, Refused
from brimful.specs.gpu import find_gpu
from brimful.tracing.report import report

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(request_path: str) -> NoReturn:
    die_with_parent()
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    answer_path = Path(request["answer"])
    # Before the clock starts: the limit is the script's.
    from brimful.tracing import session  # noqa: F401

    with Path(request["stacks"]).open("w", encoding="utf-8") as stacks:
        # When its time is over, write where every thread is, and leave.
        faulthandler.dump_traceback_later(request["limit_s"], exit=True, file=stacks)
        try:
            answer = {"ok": True, "data": traced(request)}
        except BrimfulError as error:
            answer = {"ok": False, "error": {**error.as_dict(), "exit_code": error.exit_code}}
        faulthandler.cancel_dump_traceback_later()
    temporary = answer_path.with_suffix(".part")
    temporary.write_text(json.dumps(answer), encoding="utf-8")
    temporary.replace(answer_path)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a script's threads and exit handlers must not hold us up


def die_with_parent() -> None:
    """Have the kernel end us when whoever waits for the answer is killed and cannot."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def traced(request: dict[str, Any]) -> dict[str, Any]:
    """Run the script for the wanted steps and report."""
    gpu = find_gpu(request["gpu"])
    import torch

    from brimful.tracing.card import card_of
    from brimful.tracing.fakecuda import patched
    from brimful.tracing.program import allocator_settings
    from brimful.tracing.session import recording
    from brimful.tracing.steps import EnoughSteps

    script = Path(request["script"])
    as_started = [
        (sys, "argv", [str(script), *request["arguments"]]),
        (sys, "path", [str(script.resolve().parent), *sys.path[1:]]),
        (os, "fork", refuse_fork),
    ]
    with (
        patched(as_started),
        recording(card_of(gpu), steps=request["steps"], rough=request["rough"]) as recorder,
    ):
        try:
            runpy.run_path(str(script), run_name="__main__")
        except EnoughSteps:
            pass
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise BadInput(
                    f"{script.name} ended with {stop.code!r}", hint="see its output below"
                ) from stop
        except BrimfulError:
            raise
        except BaseException as error:
            if len(recorder.tape.step_ends) < request["steps"]:
                raise _readable(error, script) from error
            # Handlers of the script's own, such as a last save, ran on the way out and failed.
            recorder.tape.notes[f"after its steps the script ended with {type(error).__name__}"] = None
    if not recorder.tape.events:
        raise BadInput(
            f"{script.name} made nothing on the GPU in {recorder.tape.ops:,} ops",
            hint='it has to train on device "cuda": look for a --device option of the script',
            code="nothing_on_gpu",
        )
    settings = request["settings"] if request["settings"] is not None else allocator_settings()
    tf32 = torch.get_float32_matmul_precision() != "highest"
    found = report(
        recorder.tape, recorder.costs.steps, gpu, settings=settings, rough=request["rough"], tf32=tf32
    )
    return found.as_dict()


def refuse_fork() -> NoReturn:
    raise Refused(
        "the script forks, and a second process cannot share the fake GPU",
        hint="trace its single-process form (no spawn, no launcher); data loader workers are no problem",
        code="script_forks",
    )


def _readable(error: BaseException, script: Path) -> BrimfulError:
    """What went wrong in the user's script: one sentence with the line, and the way out where we know one."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    theirs = [f for f in frames if not f.filename.startswith((ours, "<frozen"))]
    own = [f for f in theirs if Path(f.filename).name == script.name] or theirs
    where = f" at {Path(own[-1].filename).name}:{own[-1].lineno}" if own else ""
    words = (str(error).strip().splitlines() or [""])[0][:300]
    problem = f"{script.name} failed{where}: {type(error).__name__}: {words}"
    kind = type(error).__name__
    sys.stderr.write("".join(traceback.format_exception(error)))
    if kind == "EOFError":
        return BadInput(
            problem, hint="it reads from standard input, which is closed: pass what it asks for as arguments"
        )
    if kind in ("UnsupportedOperatorException", "UnsupportedFakeTensorException") or "fake impl" in str(
        error
    ):
        return Refused(
            f"{problem} — a kernel whose result cannot be known without running it",
            hint="give its ops a fake kernel (register_fake), or trace a path without them",
            code="unknown_kernel",
        )
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return Refused(
            f"{problem} — a shape that depends on values, and there are none",
            hint="give that line a fixed shape for the trace (pad, or skip boolean masks and nonzero)",
            code="shape_from_values",
        )
    hint = "does it run on a real GPU? If so this is a case brimful does not know: --rough may get through"
    if kind in ("ModuleNotFoundError", "ImportError"):
        hint = "install what it needs into the environment brimful runs in"
    return BadInput(problem, hint=hint, code="script_failed")


if __name__ == "__main__":
    main(sys.argv[1])
