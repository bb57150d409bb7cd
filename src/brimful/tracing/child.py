"""The process in which a user's script is traced: `python -m brimful.tracing.child REQUEST`.

A separate process because a missed case may abort inside libtorch, and because a script may change any global
state. REQUEST is a JSON file; the answer is written beside it, complete or not at all.
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
from brimful.files import write_whole
from brimful.language import Number, Plain, Quoted, choose, say
from brimful.language.record import as_record
from brimful.specs.gpu import find_gpu
from brimful.tracing.report import report

_PR_SET_PDEATHSIG = 1  # linux/prctl.h


def main(request_path: str) -> NoReturn:
    die_with_parent()
    request = json.loads(Path(request_path).read_text(encoding="utf-8"))
    choose(request["language"])
    # Before the clock starts: the limit is for the script.
    from brimful.tracing import session  # noqa: F401

    with Path(request["stacks"]).open("w", encoding="utf-8") as stacks:
        # When its time is over, write where every thread is, and exit.
        faulthandler.dump_traceback_later(request["limit_s"], exit=True, file=stacks)
        try:
            answer = {"ok": True, "data": traced(request)}
        except BrimfulError as error:
            said = {"code": error.code, "exit_code": error.exit_code}
            said |= {"reason": as_record(error.said), "hint": as_record(error.way_out)}
            answer = {"ok": False, "error": said}
        faulthandler.cancel_dump_traceback_later()
    write_whole(Path(request["answer"]), json.dumps(answer))
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(0)  # a script's threads and exit handlers must not delay us


def die_with_parent() -> None:
    """Have the kernel end this process if its parent is killed and cannot do it."""
    with suppress(OSError, AttributeError):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def traced(request: dict[str, Any]) -> dict[str, Any]:
    """Run the script for the requested steps and report."""
    gpu = find_gpu(request["gpu"])
    import torch

    from brimful.tracing.cuda_device import cuda_device
    from brimful.tracing.fakecuda import patched
    from brimful.tracing.program import allocator_settings
    from brimful.tracing.session import recording
    from brimful.tracing.steps import EnoughSteps
    from brimful.tracing.values import watched_range

    script = Path(request["script"])
    as_started = [
        (sys, "argv", [str(script), *request["arguments"]]),
        (sys, "path", [str(script.resolve().parent), *sys.path[1:]]),
        (os, "fork", refuse_fork),
    ]
    with (
        patched(as_started),
        recording(cuda_device(gpu), steps=request["steps"], rough=request["rough"]) as recorder,
    ):
        try:
            counted = watched_range(recorder.tape, recorder.places.line)
            runpy.run_path(str(script), {"range": counted}, run_name="__main__")
        except EnoughSteps:
            pass
        except SystemExit as stop:
            if stop.code not in (None, 0):
                raise BadInput(
                    say("tracing.script_exited", name=script.name, status=Quoted(stop.code))
                ) from stop
        except BrimfulError:
            raise
        except BaseException as error:
            if len(recorder.tape.step_ends) < request["steps"]:
                raise _readable(error, script) from error
            # The script's own handlers, such as a last save, ran on the way out and failed.
            recorder.tape.note(say("tracing.note_script_ended", name=type(error).__name__))
    if not recorder.tape.events:
        raise BadInput(
            say("tracing.nothing_on_gpu", name=script.name, ops=Number(recorder.tape.ops)),
            code="nothing_on_gpu",
        )
    settings = request["settings"] if request["settings"] is not None else allocator_settings()
    tf32 = torch.get_float32_matmul_precision() != "highest"
    found = report(recorder.tape, recorder.costs, gpu, settings=settings, rough=request["rough"], tf32=tf32)
    return found.as_dict()


def refuse_fork() -> NoReturn:
    raise Refused(say("tracing.script_forks"), code="script_forks")


def _readable(error: BaseException, script: Path) -> BrimfulError:
    """What went wrong in the user's script: one sentence with the line, and advice if we have any."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = str(Path(__file__).parent)
    theirs = [f for f in frames if not f.filename.startswith((ours, "<frozen"))]
    own = [f for f in theirs if Path(f.filename).name == script.name] or theirs
    last = own[-1] if own else None
    at = say("tracing.at_place", file=Path(last.filename).name, line=Plain(last.lineno)) if last else ""
    words = (str(error).strip().splitlines() or [""])[0][:300]
    kind = type(error).__name__
    problem = say("tracing.script_failed", script=script.name, where=at, kind=kind, words=words)
    sys.stderr.write("".join(traceback.format_exception(error)))
    if kind == "EOFError":
        return BadInput(problem, hint=say("tracing.hint_standard_input"))
    if kind in ("UnsupportedOperatorException", "UnsupportedFakeTensorException") or "fake impl" in str(
        error
    ):
        return Refused(say("tracing.unknown_kernel", problem=problem), code="unknown_kernel")
    if kind in ("DataDependentOutputException", "DynamicOutputShapeException"):
        return Refused(say("tracing.shape_from_values", problem=problem), code="shape_from_values")
    hint = say("tracing.hint_unknown_case")
    if kind in ("ModuleNotFoundError", "ImportError"):
        hint = say("tracing.hint_install_what_it_needs")
    return BadInput(problem, hint=hint, code="script_failed")


if __name__ == "__main__":
    main(sys.argv[1])
