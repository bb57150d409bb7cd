"""What the driver reports about each card and the holders of its memory, by NVML through `nvidia-ml-py`.

A value that a card does not have is None: GeForce has no ECC, a MIG slice no power. A card that does not
answer at all is a sample with a `problem`, because the others still do. Only a machine without cards, without
their driver or without the package is an error.
"""

from __future__ import annotations

import contextlib
import pwd
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from brimful.errors import BrimfulError, WorldFailed
from brimful.language import Sentence, Several, Value, say, verbatim
from brimful.language.catalog import is_held
from brimful.meter.samples import GpuSample, ProcessSample

_MOST_NAME = 120  # characters kept of a process's command line

# NVML's own names of its errors, from 1 on; `meter.nvml_NAME` says what each means and what to do. Source:
# nvml.h, nvmlReturn_t.
_ERRORS = (
    "uninitialized", "invalid_argument", "not_supported", "no_permission",
    "already_initialized", "not_found", "insufficient_size", "insufficient_power",
    "driver_not_loaded", "timeout", "irq_issue", "library_not_found",
    "function_not_found", "corrupted_inforom", "gpu_is_lost", "reset_required",
    "operating_system", "lib_rm_version_mismatch", "in_use", "memory",
    "no_data", "vgpu_ecc_not_supported", "insufficient_resources", "freq_not_supported",
    "argument_version_mismatch", "deprecated", "not_ready", "gpu_not_found",
    "invalid_state", "reset_type_not_supported",
)  # fmt: skip
_UNKNOWN = 999
_GONE = frozenset({15, 16, 28})  # the card as a whole does not answer
_LOOK_AGAIN = frozenset({1, 5})
_QUIET = frozenset({3, 22, 24})  # the card has no such thing: nothing to report

# Bits of the reasons for a low clock. Idle is not a throttle; the user's own clock setting counts as one.
_THROTTLES = {
    0x002: "clock_set_by_hand",
    0x004: "power_cap",
    0x008: "hardware_slowdown",
    0x010: "sync_boost",
    0x020: "too_hot",
    0x040: "too_hot_hardware",
    0x080: "power_brake",
    0x100: "display_clock",
    0x200: "board_limit",
    0x400: "reliability_limit",
}


def error_name(number: int) -> str:
    """NVML's own name of an error; its number if brimful does not know it."""
    if 0 < number <= len(_ERRORS):
        return _ERRORS[number - 1]
    return "unknown" if number == _UNKNOWN else str(number)


def meaning(name: str) -> Sentence:
    """What an NVML error means; its hint is what to do. A file of an older version has text instead."""
    if is_held(f"meter.nvml_{name}"):
        return say(f"meter.nvml_{name}")
    return say("meter.nvml_other", number=name) if name.isdigit() else verbatim(name)


def problem_said(name: str) -> Value:
    """Why a card does not answer, and what to do."""
    said = meaning(name)
    hint = said.hint()
    return said if hint is None else Several((said, hint), between="; ")


def throttle_said(name: str) -> Sentence:
    """Why a clock is reduced; a file of an older version has text instead."""
    return say(f"meter.throttle_{name}") if is_held(f"meter.throttle_{name}") else verbatim(name)


class NvidiaDriver:
    """The machine's NVIDIA cards. Open once and look as often as you like; a lost driver is reopened."""

    def __init__(self) -> None:
        self._nvml = _package()
        self._asked(self._nvml.nvmlInit)

    def close(self) -> None:
        with contextlib.suppress(self._nvml.NVMLError):  # already closed by what broke it
            self._nvml.nvmlShutdown()

    def look(self, now_s: float) -> list[GpuSample]:
        """One sample for every card, and one for every MIG slice after its card."""
        try:
            count = self._nvml.nvmlDeviceGetCount()
        except self._nvml.NVMLError as error:
            if error.value not in _LOOK_AGAIN:
                raise _no_answer(error) from error
            self._asked(self._nvml.nvmlInit)
            count = self._asked(self._nvml.nvmlDeviceGetCount)
        if not count:
            raise WorldFailed(say("meter.driver_sees_no_gpu"), code="no_gpu")
        return [sample for index in range(count) for sample in self._card(index, now_s)]

    def driver(self) -> str:
        try:
            return str(self._nvml.nvmlSystemGetDriverVersion())
        except (self._nvml.NVMLError, ValueError):
            return ""

    def _asked(self, question: Callable[[], Any]) -> Any:
        try:
            return question()
        except self._nvml.NVMLError as error:
            raise _no_answer(error) from error

    def _card(self, index: int, now_s: float) -> Iterator[GpuSample]:
        try:
            handle = self._nvml.nvmlDeviceGetHandleByIndex(index)
            whole = self._sample(handle, GpuSample(at_s=now_s, index=index))
        except self._nvml.NVMLError as error:
            yield GpuSample(at_s=now_s, index=index, problem=error_name(error.value))
            return
        slices = list(self._slices(handle, whole)) if not whole.problem else []
        if slices:  # the card lists the processes of all its slices again
            whole = replace(whole, processes=())
        yield whole
        yield from slices

    def _slices(self, handle: Any, whole: GpuSample) -> Iterator[GpuSample]:
        nvml = self._nvml
        try:
            if not nvml.nvmlDeviceGetMigMode(handle)[0]:
                return
            most = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError:
            return
        for mig in range(most):
            blank = GpuSample(at_s=whole.at_s, index=whole.index, mig=mig)
            try:
                yield self._sample(nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, mig), blank)
            except nvml.NVMLError as error:
                if error.value not in (2, 6):  # no such slice
                    yield replace(blank, name=whole.name, problem=error_name(error.value))

    def _sample(self, handle: Any, blank: GpuSample) -> GpuSample:
        found: dict[str, Any] = {}
        gaps: dict[str, str] = {}
        for field, question in _QUESTIONS.items():
            try:
                answer = question(self._nvml, handle)
                found |= answer if isinstance(answer, dict) else {field: answer}
            except (self._nvml.NVMLError, self._nvml.NVMLLibraryMismatchError, ValueError) as error:
                code = getattr(error, "value", 13)  # the package is newer than the driver
                if code in _GONE:
                    known = {key: found[key] for key in ("name", "uuid") if key in found}
                    return replace(blank, **known, problem=error_name(code))
                if code not in _QUIET:
                    gaps[field] = error_name(code)
        return replace(blank, **found, gaps=gaps)


def read_gpus(now_s: float) -> list[GpuSample]:
    """One look at every card of this machine."""
    with contextlib.closing(NvidiaDriver()) as cards:
        return cards.look(now_s)


def _package() -> Any:
    try:
        import pynvml
    except ModuleNotFoundError as error:
        raise WorldFailed(say("meter.no_nvml_package"), code="no_nvml_package") from error
    if not hasattr(pynvml, "NVMLLibraryMismatchError"):
        raise WorldFailed(say("meter.wrong_pynvml"), code="no_nvml_package")
    return pynvml


def _no_answer(error: Any) -> BrimfulError:
    why = meaning(error_name(error.value))
    code = {12: "no_driver", 28: "no_gpu"}.get(error.value, "nvml_failed")
    said = say("meter.no_driver", why=why) if code == "no_driver" else say("meter.driver_silent", why=why)
    return WorldFailed(said, hint=why.hint(), code=code)


Found = dict[str, Any]


def _memory(nvml: Any, handle: Any) -> Found:
    """The second version separates what the driver keeps for itself; the first counts it as used."""
    try:
        memory = nvml.nvmlDeviceGetMemoryInfo(handle, version=nvml.nvmlMemory_v2)
    except nvml.NVMLError as error:
        if error.value not in (3, 13, 25):
            raise
        memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    names = [name for name in ("total", "used", "reserved") if hasattr(memory, name)]
    return {f"memory_{name}_bytes": getattr(memory, name) for name in names}


def _busy(nvml: Any, handle: Any) -> Found:
    rates = nvml.nvmlDeviceGetUtilizationRates(handle)
    return {"busy_frac": rates.gpu / 100, "memory_busy_frac": rates.memory / 100}


def _temperature(nvml: Any, handle: Any) -> Any:
    try:
        return nvml.nvmlDeviceGetTemperatureV(handle, nvml.NVML_TEMPERATURE_GPU)
    except (AttributeError, nvml.NVMLError) as error:  # a package or driver before 2025
        if getattr(error, "value", 13) in _GONE:
            raise
        return nvml.nvmlDeviceGetTemperature(handle, nvml.NVML_TEMPERATURE_GPU)


def _throttle(nvml: Any, handle: Any) -> tuple[str, ...]:
    try:
        bits = nvml.nvmlDeviceGetCurrentClocksEventReasons(handle)
    except (AttributeError, nvml.NVMLError) as error:
        if getattr(error, "value", 13) not in (3, 13, 26):
            raise
        bits = nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle)
    return tuple(words for bit, words in _THROTTLES.items() if bits & bit)


def _processes(nvml: Any, handle: Any) -> tuple[ProcessSample, ...]:
    compute = nvml.nvmlDeviceGetComputeRunningProcesses(handle)
    found = {each.pid: _process(each, "compute") for each in compute}
    try:
        for each in nvml.nvmlDeviceGetGraphicsRunningProcesses(handle):
            found.setdefault(each.pid, _process(each, "graphics"))
    except nvml.NVMLError as error:
        if error.value in _GONE:
            raise
    return tuple(found[pid] for pid in sorted(found))


def _process(each: Any, kind: str) -> ProcessSample:
    name, user = who(each.pid)
    return ProcessSample(pid=each.pid, used_bytes=each.usedGpuMemory, kind=kind, name=name, user=user)


# In this order. The key is the field, also in `gaps`; a query that answers several fields gives a dict.
_QUESTIONS: dict[str, Callable[[Any, Any], Any]] = {
    "name": lambda nvml, handle: nvml.nvmlDeviceGetName(handle),
    "uuid": lambda nvml, handle: nvml.nvmlDeviceGetUUID(handle),
    "memory_used_bytes": _memory,
    "busy_frac": _busy,
    "power_w": lambda nvml, handle: nvml.nvmlDeviceGetPowerUsage(handle) / 1000,
    "power_limit_w": lambda nvml, handle: nvml.nvmlDeviceGetEnforcedPowerLimit(handle) / 1000,
    "temperature_c": _temperature,
    "fan_frac": lambda nvml, handle: nvml.nvmlDeviceGetFanSpeed(handle) / 100,
    "sm_clock_hz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
    "sm_clock_max_hz": lambda nvml, handle: nvml.nvmlDeviceGetMaxClockInfo(handle, nvml.NVML_CLOCK_SM) * 1e6,
    "memory_clock_hz": lambda nvml, handle: nvml.nvmlDeviceGetClockInfo(handle, nvml.NVML_CLOCK_MEM) * 1e6,
    "throttle": _throttle,
    "ecc_errors": lambda nvml, handle: nvml.nvmlDeviceGetTotalEccErrors(
        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
    ),
    "processes": _processes,
}


def who(pid: int) -> tuple[str, str]:
    """The program behind a pid and its owner; empty if this machine does not show it."""
    folder = Path("/proc") / str(pid)
    name = user = ""
    try:
        words = (folder / "cmdline").read_bytes().split(b"\0")
        shown = b" ".join(words).decode(errors="replace").strip()
        name = (shown or (folder / "comm").read_text(errors="replace").strip())[:_MOST_NAME]
        user = pwd.getpwuid(folder.stat().st_uid).pw_name
    except (OSError, KeyError):
        pass  # it ended, or is in another container
    return name, user
