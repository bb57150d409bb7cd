"""The driver's cards, read through the real nvidia-ml-py from a library that tests make up."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from contextlib import closing

import pytest

from brimful.errors import WorldFailed
from brimful.meter.nvml import NvidiaDriver, error_name, meaning, problem_said, read_gpus
from brimful.meter.samples import GpuSample
from brimful.units import GIB
from tests.fake_nvml import ERRORS, LOST, FakeNvml, a_card

FIELD_QUESTIONS = [
    "nvmlDeviceGetName", "nvmlDeviceGetUUID", "nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetMemoryInfo",
    "nvmlDeviceGetUtilizationRates", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetEnforcedPowerLimit",
    "nvmlDeviceGetTemperatureV", "nvmlDeviceGetTemperature", "nvmlDeviceGetFanSpeed",
    "nvmlDeviceGetClockInfo", "nvmlDeviceGetMaxClockInfo",
    "nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetTotalEccErrors",
    "nvmlDeviceGetCurrentClocksThrottleReasons", "nvmlDeviceGetComputeRunningProcesses_v3",
    "nvmlDeviceGetGraphicsRunningProcesses_v3", "nvmlDeviceGetMigMode", "nvmlDeviceGetMaxMigDeviceCount",
    "nvmlDeviceGetMigDeviceHandleByIndex", "nvmlDeviceGetHandleByIndex_v2",
]  # fmt: skip


def test_a_card_says_what_the_driver_knows(fake_nvml: FakeNvml) -> None:
    me = os.getpid()
    fake_nvml.show(a_card(memory_used=10 * GIB, processes=[(me, 9 * GIB, "compute"), (7, 0, "graphics")]))

    [card] = read_gpus(now_s=5.0)

    assert (card.at_s, card.index, card.mig) == (5.0, 0, None)
    assert card.name == "NVIDIA GeForce RTX 4070"
    assert card.memory_total_bytes == 12282 * 1024**2
    assert (card.memory_used_bytes, card.memory_reserved_bytes) == (10 * GIB, 300 * 1024**2)
    assert (card.busy_frac, card.memory_busy_frac) == (0.97, 0.41)
    assert (card.power_w, card.power_limit_w, card.temperature_c) == (186.5, 200.0, 67)
    assert (card.sm_clock_hz, card.sm_clock_max_hz, card.memory_clock_hz) == (2475e6, 3105e6, 10501e6)
    assert card.throttle == ()
    assert (card.problem, card.gaps) == ("", {})
    assert card.ecc_errors is None, "a GeForce has no ECC, which is nothing to tell"
    other, mine = card.processes
    assert (mine.pid, mine.used_bytes, mine.kind) == (me, 9 * GIB, "compute")
    assert "python" in mine.name or "pytest" in mine.name
    assert (other.pid, other.used_bytes, other.kind) == (7, None, "graphics")


def test_values_change_while_a_reader_is_open(fake_nvml: FakeNvml) -> None:
    with closing(NvidiaDriver()) as cards:
        assert cards.look(0.0)[0].busy_frac == 0.97
        fake_nvml.show(a_card(busy=3, power_mw=21_000), a_card("NVIDIA A100-SXM4-80GB", uuid="GPU-2"))
        first, second = cards.look(1.0)
    assert (first.busy_frac, first.power_w, second.index) == (0.03, 21.0, 1)


@pytest.mark.parametrize(
    ("bits", "words"),
    [
        (0x1, ()),
        (0x4, ("power_cap",)),
        (0x68, ("hardware_slowdown", "too_hot", "too_hot_hardware")),
        (0x82, ("clock_set_by_hand", "power_brake")),
    ],
)
def test_why_the_clock_is_low(fake_nvml: FakeNvml, bits: int, words: tuple[str, ...]) -> None:
    fake_nvml.show(a_card(throttle=bits))
    assert read_gpus(0.0)[0].throttle == words


def test_a_mig_card_has_slices_and_their_processes_once(fake_nvml: FakeNvml) -> None:
    quiet = ["busy", "power_mw", "temperature", "fan", "sm_clock", "throttle"]
    slices = [
        a_card(
            "NVIDIA A100-SXM4-40GB MIG 3g.20gb",
            uuid=f"MIG-{i}",
            memory_total=20 * GIB,
            memory_used=i * GIB,
            without=quiet,
            processes=[(100 + i, GIB, "compute")],
        )
        for i in range(2)
    ]
    both = [(100, GIB, "compute"), (101, GIB, "compute")]
    fake_nvml.show(
        a_card("NVIDIA A100-SXM4-40GB", mig_mode=1, without=["busy"], slices=slices, processes=both), a_card()
    )

    whole, first, second, other = read_gpus(0.0)

    assert (whole.mig, whole.busy_frac, whole.processes) == (None, None, ())
    assert [(each.index, each.mig, each.uuid) for each in (first, second)] == [
        (0, 0, "MIG-0"),
        (0, 1, "MIG-1"),
    ]
    assert second.memory_used_bytes == GIB
    assert second.power_w is None
    assert [each.pid for each in second.processes] == [101]
    assert (other.index, other.mig) == (1, None)


def test_a_card_that_fell_off_the_bus_is_named_and_the_others_still_answer(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(a_card(), a_card(uuid="GPU-lost", fails=LOST), a_card(uuid="GPU-2"))
    first, lost, last = read_gpus(0.0)
    assert (first.problem, last.problem) == ("", "")
    assert lost.problem == "gpu_is_lost"
    told = problem_said(lost.problem).plain()
    assert [each["code"] for each in told] == ["meter.nvml_gpu_is_lost", "meter.nvml_gpu_is_lost.hint"]
    assert lost.memory_used_bytes is None


def test_a_card_may_be_lost_between_two_questions(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(a_card(fails={"nvmlDeviceGetPowerUsage": ERRORS["GPU_IS_LOST"]}))
    [card] = read_gpus(0.0)
    assert card.name == "NVIDIA GeForce RTX 4070"
    assert card.problem == "gpu_is_lost"
    assert card.busy_frac is None, "what was read before may be stale"


def test_an_old_driver_counts_its_own_memory_as_used(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(a_card(memory_used=GIB, fails={"nvmlDeviceGetMemoryInfo_v2": 13}))
    [card] = read_gpus(0.0)
    assert card.memory_used_bytes == GIB + 300 * 1024**2
    assert card.memory_reserved_bytes is None


def test_no_permission_is_told_where_the_value_would_be(fake_nvml: FakeNvml) -> None:
    fake_nvml.show(a_card(fails={"nvmlDeviceGetComputeRunningProcesses_v3": ERRORS["NO_PERMISSION"]}))
    [card] = read_gpus(0.0)
    assert (card.processes, card.gaps) == ((), {"processes": "no_permission"})


@pytest.mark.parametrize("code", ERRORS.values(), ids=ERRORS)
def test_every_error_at_every_question_leaves_a_sample(fake_nvml: FakeNvml, code: int) -> None:
    for question in FIELD_QUESTIONS:
        fake_nvml.show(a_card(mig_mode=1, fails={question: code}), a_card(uuid="GPU-2"))
        *broken, whole = read_gpus(0.0)
        assert whole.problem == "", question
        assert broken, question
        assert all(isinstance(each, GpuSample) for each in broken)


@pytest.mark.parametrize("question", ["nvmlInitWithFlags", "nvmlDeviceGetCount_v2"])
@pytest.mark.parametrize("code", ERRORS.values(), ids=ERRORS)
def test_every_error_of_the_driver_itself_is_a_sentence_with_a_way_out(
    fake_nvml: FakeNvml, code: int, question: str
) -> None:
    fake_nvml.show(a_card(), fails={question: code})
    with pytest.raises(WorldFailed) as caught:
        read_gpus(0.0)
    assert caught.value.said.as_dict() == {
        "code": "meter.no_driver" if code == 12 else "meter.driver_silent",
        "why": meaning(error_name(code)).as_dict(),
    }
    assert caught.value.code == {12: "no_driver", 28: "no_gpu"}.get(code, "nvml_failed")


def test_a_number_nvml_may_have_one_day_is_not_a_crash() -> None:
    assert meaning(error_name(77)).as_dict() == {"code": "meter.nvml_other", "number": "77"}


def test_a_machine_whose_driver_sees_no_card(fake_nvml: FakeNvml) -> None:
    fake_nvml.show()
    with pytest.raises(WorldFailed) as caught:
        read_gpus(0.0)
    assert caught.value.code == "no_gpu"


def test_a_driver_that_was_closed_underneath_is_opened_again(fake_nvml: FakeNvml) -> None:
    import pynvml

    with closing(NvidiaDriver()) as cards:
        pynvml.nvmlShutdown()
        assert cards.look(0.0)[0].busy_frac == 0.97


READ = "import json; from brimful.meter.nvml import read_gpus; from brimful.errors import BrimfulError\n"
TRY = READ + "try: read_gpus(0.0)\nexcept BrimfulError as e: print(json.dumps(e.as_dict()))"


def _said(program: str, env: dict[str, str]) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-c", program], env=env, capture_output=True, text=True, check=True
    )
    said: dict[str, object] = json.loads(done.stdout)
    return said


def test_a_machine_without_the_driver_is_told_so() -> None:
    env = {**os.environ, "LD_LIBRARY_PATH": ""}
    why = {"code": "meter.nvml_library_not_found"}
    assert _said(TRY, env)["reason"] == {"code": "meter.no_driver", "why": why}


def test_a_machine_without_the_package_is_told_what_to_install() -> None:
    hide = "import sys; sys.modules['pynvml'] = None\n"
    said = _said(hide + TRY, dict(os.environ))
    assert (said["code"], said["hint"]) == ("no_nvml_package", "pip install 'brimful[meter]'")


def test_another_package_of_the_same_name_is_not_taken_for_it() -> None:
    other = "import sys, types; sys.modules['pynvml'] = types.ModuleType('pynvml')\n"
    assert _said(other + TRY, dict(os.environ))["code"] == "no_nvml_package"
