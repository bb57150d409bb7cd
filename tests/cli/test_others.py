"""--other-mib and --headless: what is assumed of other programs, and where the answer says so."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from brimful.cli.fleet.estimates import estimates_for
from brimful.cli.main import main
from brimful.configs.read import read
from brimful.errors import Refused, WorldFailed
from brimful.fit.advice.cards import rank
from brimful.fit.fit import estimate
from brimful.language import verbatim
from brimful.meter.samples import GpuSample
from brimful.specs.desktop import others_on
from brimful.specs.gpu import all_gpus, find_gpu
from brimful.specs.prices import known_prices
from brimful.units import MIB
from tests.builders import refuses

CONFIG = str(Path(__file__).parents[2] / "examples" / "nanogpt" / "train_fineweb.py")
CARD = find_gpu("rtx-4070")
DESKTOP = others_on(CARD)


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, dict[str, Any]]:
    code = main([*words, "--json"])
    return code, json.loads(capsys.readouterr().out)["data"]


@pytest.mark.parametrize(
    ("words", "mib", "basis", "verdict", "code"),
    [
        ((), DESKTOP.bytes / MIB, "assumed", "likely_does_not_fit", 1),
        (("--headless",), 0, "given", "at_risk", 0),
        (("--other-mib", "300"), 300, "given", "at_risk", 0),
        (("--other-mib", "2100"), 2100, "given", "does_not_fit", 1),
        (("--other-mib", "0", "--headless"), 0, "given", "at_risk", 0),
        (("--headless", "--set", "batch_size=8"), 0, "given", "fits", 0),
    ],
)
def test_what_is_said_wins_over_what_is_assumed(
    capsys: pytest.CaptureFixture[str],
    words: tuple[str, ...],
    mib: float,
    basis: str,
    verdict: str,
    code: int,
) -> None:
    left, data = answer(capsys, "fit", CONFIG, "--gpu", "4070", *words)

    assert (left, data["verdict"], data["fits"]) == (code, verdict, code == 0)
    assert data["other_programs"]["bytes"] == mib * MIB
    assert data["other_programs"]["basis"] == basis


def test_a_run_at_risk_shows_its_fixes_and_patch_makes_the_first(capsys: pytest.CaptureFixture[str]) -> None:
    _, data = answer(capsys, "fit", CONFIG, "--gpu", "4070", "--headless")
    assert data["fixes"][0]["change"] == {"batch_size": [16, 8], "gradient_accumulation_steps": [32, 64]}
    assert {fix["verdict"] for fix in data["fixes"]} == {"fits"}

    assert main(["fit", CONFIG, "--gpu", "4070", "--headless", "--patch"]) == 0
    patched = capsys.readouterr().out
    assert re.search(r"^batch_size = 8\b", patched, re.MULTILINE)
    assert re.search(r"^gradient_accumulation_steps = 64\b", patched, re.MULTILINE)


@pytest.mark.parametrize(
    "words",
    [
        ("fit", CONFIG, "--gpu", "4070"),
        ("fit", CONFIG, "--gpu", "4070", "--compare", "batch_size=8"),
        ("fit", CONFIG, "--gpu", "4070", "--ladder"),
        ("fit", CONFIG, "--gpu", "all"),
        ("fit", "--model", "gpt2", "--gpu", "4070", "--inference"),
        ("sweep", CONFIG, "--gpu", "4070", "--batch-size", "1:4"),
        ("sweep", CONFIG, "--gpu", "4070", "--batch-size", "1:4", "--seq-len", "256,512"),
        ("claims", CONFIG, "--gpu", "4070"),
        ("run", "--gpu", "4070", "--dry-run", "--config", CONFIG, "--", "python", "train.py"),
    ],
    ids=lambda words: " ".join(words[:1] + words[2:]),
)
def test_every_answer_that_rests_on_the_assumption_says_so(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    def no_driver(_now_s: float) -> list[GpuSample]:
        raise WorldFailed(verbatim("there is no driver"))

    monkeypatch.setattr("brimful.meter.nvml.read_gpus", no_driver)

    def told(*more: str) -> str:
        main([words[0], *more, *words[1:]])
        return " ".join(capsys.readouterr().out.split())

    programs = f"{DESKTOP.bytes // MIB} MiB for the desktop and other programs"
    said = f"assuming {programs} (median of {DESKTOP.readings} published readings)"
    assert said in told()
    assert "(median of" not in told("--headless")


def test_a_log_is_explained_with_the_assumption(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    log = tmp_path / "crash.log"
    log.write_text("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.54 GiB.\n")

    _, data = answer(capsys, "explain", str(log), "--config", CONFIG, "--gpu", "4070")

    assert data["recognised"][-1]["facts"]["other_programs"] == DESKTOP.as_dict()


def test_all_cards_are_judged_as_each_alone() -> None:
    reading = read(CONFIG)
    judged = {one.gpu.name: one for one in rank(reading, known_prices(), correction=None)}

    for gpu in all_gpus():
        one = judged[gpu.name]
        alone = estimate(reading.model, one.training, gpu, correction=None)
        assert (one.estimate.verdict, one.estimate.others) == (alone.verdict, others_on(gpu)), gpu.name
        assert gpu.geforce == (one.estimate.others.bytes > 0), gpu.name


def test_a_job_is_handed_over_with_its_own_bytes_and_judged_with_the_desktops() -> None:
    alone = estimates_for(CONFIG, ["rtx-4070", "rtx-4090"], gpus=1, other_bytes=0).predicted
    beside = estimates_for(CONFIG, ["rtx-4070", "rtx-4090"], gpus=1)

    assert set(alone) == {"rtx-4070", "rtx-4090"}
    assert beside.predicted == {"rtx-4090": alone["rtx-4090"]}
    with refuses(Refused, "gpu.fits_nowhere") as refused:
        estimates_for(CONFIG, ["rtx-4070"], gpus=1)
    assert refused.value.code == "will_not_fit"
    assert refused.value.said.as_dict()["why"][0]["needs"]["code"] == "fleet.with_desktop"


def test_a_sweep_says_from_where_on_it_is_at_risk(capsys: pytest.CaptureFixture[str]) -> None:
    _, data = answer(capsys, "sweep", CONFIG, "--gpu", "4070", "--headless", "--batch-size", "1:24")
    verdicts = {point["value"]: point["verdict"] for point in data["points"]}

    assert data["sure"] < data["largest"]
    assert (verdicts[data["sure"]], verdicts[data["sure"] + 1]) == ("fits", "at_risk")
    assert (verdicts[data["largest"]], verdicts[data["largest"] + 1]) == ("at_risk", "likely_does_not_fit")


@pytest.mark.parametrize("verb", ["fit", "sweep", "claims"])
@pytest.mark.parametrize("mib", ["-1", "1000001"])
def test_a_number_out_of_range_is_refused(capsys: pytest.CaptureFixture[str], verb: str, mib: str) -> None:
    assert main([verb, CONFIG, "--gpu", "4070", "--other-mib", mib, "--json"]) == 2
    assert json.loads(capsys.readouterr().out)["error"]["code"] == "bad_input"


def test_no_program_and_a_program_that_holds_memory_cannot_both_be(
    capsys: pytest.CaptureFixture[str],
) -> None:
    words = ("fit", CONFIG, "--gpu", "4070", "--headless", "--other-mib", "500", "--json")
    assert main(list(words)) == 2
    reason = json.loads(capsys.readouterr().out)["error"]["reason"]
    assert (reason["code"], reason["other_mib"]) == ("operate.headless_and_other", 500)
