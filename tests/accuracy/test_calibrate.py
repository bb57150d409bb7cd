"""A user's own runs correct the estimate, or are refused with the reason."""

from __future__ import annotations

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.accuracy.calibrate import calibrate, factor_of
from brimful.accuracy.score import score
from brimful.cli.main import main
from brimful.errors import BadInput
from brimful.fit.correction import (
    FARTHEST,
    Correction,
    Factor,
    calibrated,
    calibration_path,
    load_correction,
    write_correction,
)
from brimful.fit.fit import estimate, fit
from brimful.language import say, words
from brimful.specs.gpu import find_gpu
from brimful.units import GIB, MIB
from tests.builders import refuses
from tests.fit.builders import a_model, a_training

GPU = find_gpu("rtx-4070")
RUN = {
    "model": "gpt2", "n_layer": "12", "n_head": "12", "d_model": "768", "vocab": "50304",
    "tied_embeddings": "yes", "seq_len": "1024", "precision": "amp_bf16", "optimizer": "AdamW fused",
    "compile": "yes", "gpu": "A100-SXM-80GB", "n_gpus": "1",
}  # fmt: skip


def a_run(id: str, *, batch: int, kind: str = "reserved_peak", memory: float = 1.0, rate: float = 1.0) -> Any:
    """A run that measured so many times what we predict."""
    row = {**RUN, "id": id, "micro_batch_per_gpu": str(batch), "mem_kind": kind}
    (one,) = score([row])
    assert one.estimate is not None
    counters = one.estimate.memory
    predicted = {
        "allocated_peak": counters.allocated_bytes,
        "reserved_peak": counters.reserved_bytes,
        "nvidia-smi": counters.device_bytes,
    }[kind].likely
    row["peak_mem_gib"] = str(memory * predicted / GIB)
    row["tokens_per_s_per_gpu"] = str(rate * one.estimate.speed.tokens_per_s.likely)
    return row


def a_table(path: Path, rows: list[dict[str, str]]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    return path


def a_correction(**factors: float) -> Correction:
    made = {
        name: Factor(factor=f, low=f, high=f, runs=5, error_before=0.2, error_after=0.01)
        for name, f in factors.items()
    }
    return Correction(factors=made, gpus=("rtx-4070",))


# -- fitting -----------------------------------------------------------------------------------------------


def test_runs_that_take_a_tenth_more_give_a_factor_of_1_1() -> None:
    rows = [a_run(f"me-{b}", batch=b, memory=1.1, rate=0.8) for b in (4, 8, 12, 16)]

    found = calibrate(score(rows))
    assert found.factors["reserved"].factor == pytest.approx(1.1, rel=1e-6)
    assert found.factors["tokens_per_s"].factor == pytest.approx(0.8, rel=1e-6)
    assert found.factors["reserved"].error_before == pytest.approx(1 - 1 / 1.1, rel=1e-6)
    assert found.factors["reserved"].error_after == pytest.approx(0, abs=1e-9)
    assert set(found.correction.factors) == {"reserved", "tokens_per_s"}


def test_scatter_without_a_side_gives_no_correction() -> None:
    ratios = [0.8, 0.9, 1.0, 1.1, 1.25]

    assert not factor_of(ratios).helps


def test_two_runs_are_too_few() -> None:
    found = calibrate(score([a_run(f"me-{b}", batch=b, memory=1.1) for b in (4, 8)]))

    assert not found.factors
    assert found.too_few == {"reserved": 2, "tokens_per_s": 2}


def test_a_run_in_the_wrong_unit_is_set_aside_by_name() -> None:
    rows = [a_run(f"me-{b}", batch=b, memory=1.05) for b in (4, 8, 12)]
    rows.append(a_run("megabytes", batch=4, memory=1024))

    found = calibrate(score(rows))
    assert found.factors["reserved"].runs == 3
    assert [(id, name) for id, name, _ in found.set_aside] == [("megabytes", "reserved")]


# -- applying ----------------------------------------------------------------------------------------------

PLAIN = estimate(a_model(), a_training(), GPU, other_bytes=2100 * MIB, correction=None)


def test_no_correction_changes_nothing() -> None:
    assert calibrated(PLAIN, None) is PLAIN
    assert calibrated(PLAIN, Correction(factors={})) is PLAIN


def test_what_one_card_taught_is_not_applied_to_another() -> None:
    correction = a_correction(device=1.2, tokens_per_s=0.5)
    other = estimate(a_model(), a_training(), find_gpu("rtx-4090"), correction=None)

    assert calibrated(other, correction) is other
    assert calibrated(PLAIN, correction) != PLAIN
    answer = fit(a_model(), a_training(), "rtx-4090", correction=correction)
    assert answer.memory == other.memory
    assert say("fit.not_corrected", cards="rtx-4070", gpu="rtx-4090") in answer.warnings


def test_a_counter_nobody_measured_moves_with_the_one_inside_it() -> None:
    now, then = PLAIN.memory, calibrated(PLAIN, a_correction(allocated=1.1)).memory
    more = 0.1 * now.allocated_bytes.likely

    assert then.allocated_bytes.likely == pytest.approx(1.1 * now.allocated_bytes.likely)
    assert then.reserved_bytes.likely - now.reserved_bytes.likely == pytest.approx(more, abs=1)
    assert then.device_bytes.likely - now.device_bytes.likely == pytest.approx(more, abs=1)


def test_other_programs_are_not_corrected() -> None:
    now, then = PLAIN.memory, calibrated(PLAIN, a_correction(device=1.2)).memory
    own = now.device_bytes.likely - 2100 * MIB

    assert then.device_bytes.likely == pytest.approx(1.2 * own + 2100 * MIB, abs=1)
    assert then.reserved_bytes == now.reserved_bytes


def test_a_slower_machine_has_longer_steps_and_a_lower_mfu() -> None:
    now, then = PLAIN.speed, calibrated(PLAIN, a_correction(tokens_per_s=0.5)).speed

    assert then.step_s.likely == 2 * now.step_s.likely
    assert then.tokens_per_s.likely == now.tokens_per_s.likely / 2
    assert then.mfu.likely == now.mfu.likely / 2
    assert then.bound_by == now.bound_by


factors = st.floats(1 / FARTHEST, FARTHEST)


@given(st.dictionaries(st.sampled_from(["allocated", "reserved", "device", "tokens_per_s"]), factors))
@settings(max_examples=100, deadline=None)
def test_a_corrected_estimate_keeps_its_promises(chosen: dict[str, float]) -> None:
    corrected = calibrated(PLAIN, a_correction(**chosen))
    memory = corrected.memory

    assert sum(item.bytes for item in memory.items) == memory.device_bytes.likely
    for end in ("low", "likely", "high"):
        sizes = [
            getattr(c, end) for c in (memory.allocated_bytes, memory.reserved_bytes, memory.device_bytes)
        ]
        assert sizes[0] <= sizes[1] <= sizes[2] + 1, end
    assert corrected.speed.mfu.high <= 1
    json.dumps(corrected.as_dict(), allow_nan=False)


# -- keeping -----------------------------------------------------------------------------------------------


def test_what_is_written_is_read_again(tmp_path: Path) -> None:
    path, correction = (
        tmp_path / "brimful" / "calibration.json",
        a_correction(reserved=1.07, tokens_per_s=0.9),
    )

    write_correction(path, correction)
    assert load_correction(path) == correction
    assert [each.name for each in path.parent.iterdir()] == ["calibration.json"]


def test_nothing_kept_is_no_correction(tmp_path: Path) -> None:
    assert load_correction(tmp_path / "calibration.json") is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "[]",
        "{}",
        "null",
        '{"version": 2, "factors": {}, "gpus": []}',
        '{"version": 1, "factors": {"device": {"factor": 1e30}}, "gpus": []}',
        '{"version": 1, "factors": {"device": {"factor": NaN, "low": 1, "high": 1, "runs": 3}}, "gpus": []}',
        '{"version": 1, "factors": {"device": 3}, "gpus": []}',
        "[" * 100_000,
        "\x00\x01",
    ],
)
def test_a_damaged_file_is_named_and_not_applied(tmp_path: Path, text: str) -> None:
    path = tmp_path / "calibration.json"
    path.write_text(text)

    with refuses(BadInput, "fit.not_calibration", path):
        load_correction(path)


def test_it_is_kept_in_the_users_config_folder() -> None:
    assert calibration_path({"XDG_CONFIG_HOME": "/etc/xdg"}) == Path("/etc/xdg/brimful/calibration.json")
    home = Path.home() / ".config" / "brimful" / "calibration.json"
    assert calibration_path({}) == calibration_path({"XDG_CONFIG_HOME": "relative"}) == home


# -- the command -------------------------------------------------------------------------------------------


@pytest.fixture
def kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    return tmp_path / "config" / "brimful" / "calibration.json"


def asked(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = main(["runs", "calibrate", *args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_calibrate_shows_before_and_after_and_writes_only_when_told(
    tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = a_table(tmp_path / "runs.csv", [a_run(f"me-{b}", batch=b, memory=1.1) for b in (4, 8, 12)])

    code, answer = asked(capsys, str(runs))
    assert code == 0
    factor = answer["data"]["factors"]["reserved"]
    assert factor["error_before"] > 0.08
    assert factor["error_after"] < 0.001
    assert not answer["data"]["written"]
    asked(capsys, str(runs), "--write", "--dry-run")
    assert not kept.exists()

    code, answer = asked(capsys, str(runs), "--write")
    assert answer["data"]["written"]
    correction = load_correction(kept)
    assert correction is not None
    # Speed was measured exactly as predicted: there is nothing to correct.
    assert set(correction.factors) == {"reserved"}

    assert asked(capsys, "--forget")[1]["data"]["removed"]
    assert not kept.exists()


def test_calibrate_refuses_too_few_runs_in_one_sentence(
    tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = a_table(tmp_path / "runs.csv", [a_run(f"me-{b}", batch=b, memory=1.1) for b in (4, 8)])

    code, answer = asked(capsys, str(runs), "--write")
    assert code == 1
    reason = answer["error"]["reason"]
    assert (reason["code"], reason["found"]) == ("accuracy.too_few_runs", "reserved 2, tokens_per_s 2")
    assert not kept.exists()


def test_calibrate_keeps_nothing_that_does_not_help(
    tmp_path: Path, kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    runs = a_table(tmp_path / "runs.csv", [a_run(f"me-{b}", batch=b) for b in (4, 8, 12)])

    code = main(["runs", "calibrate", str(runs), "--write"])
    assert code == 1
    assert words("gpu.calibrate_no_better") in capsys.readouterr().out
    assert not kept.exists()


def test_calibrate_says_where_it_cannot_write(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "config").write_text("a file where a folder should be")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    runs = a_table(tmp_path / "runs.csv", [a_run(f"me-{b}", batch=b, memory=1.1) for b in (4, 8, 12)])

    code, answer = asked(capsys, str(runs), "--write")
    assert code == 3
    assert "cannot write" in answer["error"]["problem"]


@pytest.mark.parametrize("args", [(), ("--forget", "--write"), ("absent.csv",)])
def test_calibrate_without_a_table_is_bad_input(
    kept: Path, capsys: pytest.CaptureFixture[str], args: tuple[str, ...]
) -> None:
    code, answer = asked(capsys, *args)

    assert code == 2
    assert answer["error"]["hint"]


def test_fit_applies_what_is_kept_and_says_so(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sizes = ["--batch-size", "8", "--seq-len", "1024"]
    wanted = ["fit", "--model", "gpt2", *sizes, "--gpu", "4070", "--headless", "--json"]
    main(wanted)
    plain = json.loads(capsys.readouterr().out)["data"]
    write_correction(kept, a_correction(device=1.2, tokens_per_s=0.5))

    main(wanted)
    corrected = json.loads(capsys.readouterr().out)["data"]
    ratio = corrected["memory"]["device_bytes"]["likely"] / plain["memory"]["device_bytes"]["likely"]
    assert ratio == pytest.approx(1.2, rel=1e-6)
    assert corrected["speed"]["step_s"]["likely"] == pytest.approx(2 * plain["speed"]["step_s"]["likely"])
    assert corrected["largest_batch"] < plain["largest_batch"]
    assert "fit.corrected" in [said["code"] for said in corrected["warning_codes"]]

    main([*wanted, "--uncalibrated"])
    assert json.loads(capsys.readouterr().out)["data"] == plain


NANOGPT = str(Path(__file__).parents[2] / "examples" / "nanogpt" / "train_fineweb.py")


def test_sweep_claims_and_cards_agree_with_fit_about_a_calibrated_card(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_correction(kept, a_correction(device=1.2, tokens_per_s=0.5))

    def told_of(*args: str) -> Any:
        main([*args, "--headless", "--json"])
        return json.loads(capsys.readouterr().out)["data"]

    fitted = told_of("fit", NANOGPT, "--gpu", "4070")
    swept = told_of("sweep", NANOGPT, "--gpu", "4070", "--batch-size", "16")
    judged = told_of("claims", NANOGPT, "--gpu", "4070")["claims"]
    cards = told_of("fit", NANOGPT, "--gpu", "all", "--set", "batch_size=1")["ranked"]
    alone = told_of("fit", NANOGPT, "--gpu", "4070", "--set", "batch_size=1")

    needs = fitted["memory"]["device_bytes"]["likely"]
    assert swept["points"][0]["device_bytes"]["likely"] == needs
    assert {one["effect"]["before_bytes"] for one in judged if one["claim"] == "checkpointing"} == {
        round(needs)
    }
    ranked = next(card for card in cards if card["gpu"] == "rtx-4070")
    assert ranked["tokens_per_s"]["likely"] == alone["speed"]["tokens_per_s"]["likely"]


def test_where_takes_as_long_as_the_calibrated_card_does(
    kept: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offers = tmp_path / "offers.csv"
    offers.write_text(
        "provider,region,zone,instance_type,gpu_model,gpu_count,gpu_mem_gib,on_demand_usd_h,spot_usd_h\n"
        "own,cellar,,box,A100-SXM-80GB,1,80,1.00,\n"
    )

    def hours() -> float:
        assert main(["market", "where", "--model", "gpt2", "--offers", str(offers), "--json"]) == 0
        return float(json.loads(capsys.readouterr().out)["data"]["places"][0]["hours"])

    plain = hours()
    factor = Factor(factor=0.5, low=0.5, high=0.5, runs=5, error_before=0.5, error_after=0.1)
    write_correction(kept, Correction(factors={"tokens_per_s": factor}, gpus=("a100-sxm-80gb",)))

    assert hours() == pytest.approx(2 * plain, rel=1e-3)


def test_fit_shows_what_a_correction_takes_off(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_correction(kept, a_correction(reserved=0.9))

    main(["fit", "--model", "gpt2", "--batch-size", "8", "--seq-len", "1024", "--gpu", "rtx-4070"])
    shown = capsys.readouterr().out
    assert words("specs.part_calibration") in shown
    assert "`brimful runs calibrate`" in shown


def test_fit_with_a_damaged_calibration_says_which_file(
    kept: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    kept.parent.mkdir(parents=True)
    kept.write_text("{")

    assert main(["fit", "--model", "gpt2", "--gpu", "rtx-4070"]) == 2
    assert str(kept) in capsys.readouterr().err
