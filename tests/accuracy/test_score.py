"""How right we are on published runs: the bars we promised, and tables that are not what they seem."""

from __future__ import annotations

import csv
import json
import os
import random
from pathlib import Path
from statistics import fmean, median
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.accuracy import runs as reader
from brimful.accuracy.calibrate import calibrate
from brimful.accuracy.runs import MAX_BYTES, read_rows, understand
from brimful.accuracy.score import Scored, report, score
from brimful.cli.main import main
from brimful.fit.activations import written_out
from brimful.language import say
from brimful.specs.torch import CURRENT
from brimful.units import GIB

ROW = {
    "id": "me-1", "model": "gpt2", "n_layer": "12", "n_head": "12", "d_model": "768", "vocab": "50304",
    "tied_embeddings": "yes", "seq_len": "1024", "micro_batch_per_gpu": "12", "precision": "amp_bf16",
    "optimizer": "AdamW fused", "compile": "yes", "gpu": "A100-SXM-80GB", "n_gpus": "1",
    "peak_mem_gib": "12.5", "mem_kind": "reserved_peak", "tokens_per_s_per_gpu": "150000", "mfu": "0.42",
}  # fmt: skip


def a_table(path: Path, *rows: dict[str, str]) -> Path:
    columns = dict.fromkeys(key for row in rows for key in row)
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, columns)
        writer.writeheader()
        writer.writerows(rows)
    return path


@pytest.fixture(scope="module")
def published(shared_data: Path) -> list[Scored]:
    runs = shared_data / "runs"
    quality = {row["id"]: row for row in read_rows(runs / "quality.csv", needed=("id",))}
    return score(read_rows(runs / "training_runs.csv"), quality)


# -- the promises ------------------------------------------------------------------------------------------


def test_memory_is_within_5_percent_in_the_middle_and_12_near_the_end(published: list[Scored]) -> None:
    memory = report(published).memory

    assert memory is not None
    assert memory.n >= 100
    assert memory.median <= 0.05
    assert memory.p90 <= 0.12


def _by_source(published: list[Scored]) -> dict[str, float]:
    return {name: e.median for name, e in report(published).by_source.items() if e.n >= 4}


@pytest.mark.xfail(strict=True, reason="hfbert is 21.7 % low: PyTorch 1.x, which its rows do not say")
def test_every_source_of_four_or_more_runs_is_within_10_percent(published: list[Scored]) -> None:
    sources = _by_source(published)

    assert max(sources.values()) <= 0.10, sources


def test_every_source_but_one_is_within_10_percent(published: list[Scored]) -> None:
    sources = _by_source(published)

    assert len(sources) >= 7
    assert [name for name, error in sources.items() if error > 0.10] == ["hfbert"], sources


def test_the_source_that_is_missed_is_met_where_its_rows_say_the_release(published: list[Scored]) -> None:
    said = score([{**each.row, "torch": "1.10"} for each in published if each.source == "hfbert"])

    assert _by_source(said)["hfbert"] <= 0.10


def test_fits_or_not_is_right_in_97_of_100_and_a_false_fit_is_rare(published: list[Scored]) -> None:
    found = report(published)

    assert found.fits_tried >= 130
    assert found.fits_right >= 0.97 * found.fits_tried
    assert found.false_fits <= 1


def test_throughput_is_within_12_percent_in_a_node_and_20_across_nodes(published: list[Scored]) -> None:
    found = report(published)

    assert found.rate_node is not None
    assert found.rate_multi is not None
    assert found.rate_node.median <= 0.12
    assert found.rate_multi.median <= 0.20


def test_mfu_is_within_4_points_in_four_of_five_runs(published: list[Scored]) -> None:
    found = report(published)

    assert found.mfu_tried >= 100
    assert found.mfu_within >= 0.80 * found.mfu_tried


def test_at_most_one_row_in_twenty_of_each_test_is_skipped(
    published: list[Scored], shared_data: Path
) -> None:
    quality = {row["id"]: row for row in read_rows(shared_data / "runs" / "quality.csv", needed=("id",))}
    skipped = {each.row["id"] for each in published if each.skipped_because}
    tests = {
        "memory": {id for id, marks in quality.items() if marks["strict_test"] == "memory"},
        "fits": {id for id, marks in quality.items() if marks["strict_test"] in ("memory", "boolean")},
        "throughput": {id for id, marks in quality.items() if marks["throughput_test"] == "yes"},
    }

    for name, rows in tests.items():
        assert len(skipped & rows) <= 0.05 * len(rows), name


def test_nine_in_ten_readings_of_reserved_and_device_lie_within_the_interval(published: list[Scored]) -> None:
    inside = []
    for each in published:
        if each.memory_error is None or each.estimate is None or each.row["mem_kind"] == "allocated_peak":
            continue
        memory = each.estimate.memory
        interval = memory.reserved_bytes if each.row["mem_kind"] == "reserved_peak" else memory.device_bytes
        inside.append(interval.low <= float(each.row["peak_mem_gib"]) * GIB <= interval.high)

    assert sum(inside) >= 0.9 * len(inside), f"{sum(inside)} of {len(inside)}"


def test_the_chance_of_running_out_is_worth_more_than_the_base_rate(shared_data: Path) -> None:
    """On both tables: Brier 40 % below that of always saying how many ran out; 95 % of "fits" did fit.

    Sources are drawn again 1,000 times. Few have runs that ran out, so the interval is wide: see the page.
    """
    by_source: dict[str, list[tuple[float, bool]]] = {}
    for table in ("", "_2"):
        runs = shared_data / "runs"
        quality = {row["id"]: row for row in read_rows(runs / f"quality{table}.csv", needed=("id",))}
        for each in score(read_rows(runs / f"training_runs{table}.csv"), quality):
            marks = quality.get(each.row["id"], {})
            if each.estimate is not None and marks.get("strict_test") in ("memory", "boolean"):
                found = each.estimate.chance, each.row["mem_kind"] == "oom"
                by_source.setdefault(each.source, []).append(found)
    chances = [one for found in by_source.values() for one in found]
    said_to_fit = [ran_out for chance, ran_out in chances if chance <= 0.05]
    draw = random.Random(18)
    drawn = sorted(
        brier_gain(
            [one for name in draw.choices(list(by_source), k=len(by_source)) for one in by_source[name]]
        )
        for _ in range(1000)
    )

    assert len(chances) > 300
    assert brier_gain(chances) >= 0.4
    assert drawn[500] >= 0.4
    assert len(said_to_fit) > 200
    assert fmean(said_to_fit) <= 0.05


def brier_gain(chances: list[tuple[float, bool]]) -> float:
    """How far the Brier score lies below that of always answering the base rate, as a share of it."""
    base = fmean(ran_out for _, ran_out in chances)
    if base in (0, 1):
        return 0.0  # a draw in which nobody, or everybody, ran out tells nothing
    return 1 - fmean((chance - ran_out) ** 2 for chance, ran_out in chances) / (base * (1 - base))


def test_we_beat_the_textbook_formula_by_far(published: list[Scored]) -> None:
    found = report(published)

    assert found.memory is not None
    assert found.textbook is not None
    assert found.memory.median < found.textbook.median / 3


def test_what_a_note_says_changes_nothing(published: list[Scored]) -> None:
    plain = [{**each.row, "notes": ""} for each in published[:60]]

    again = score(plain)
    assert [each.estimate for each in again] == [each.estimate for each in published[:60]]


def test_the_sum_of_errors_is_the_median_a_colleague_would_compute(published: list[Scored]) -> None:
    errors = [abs(each.memory_error) for each in published if each.memory_error is not None]
    found = report(published)

    assert found.memory is not None
    assert found.memory.median == pytest.approx(median(errors))


# -- other people's tables ---------------------------------------------------------------------------------


def scored(capsys: pytest.CaptureFixture[str], *args: str) -> tuple[int, dict[str, Any]]:
    code = main(["runs", "score", *args, "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_a_table_of_ones_own_needs_no_quality_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, answer = scored(capsys, str(a_table(tmp_path / "runs.csv", ROW)))

    assert code == 0
    assert answer["data"]["memory"]["n"] == 1
    assert answer["data"]["fits"] == {"right": 1, "tried": 1, "false_fits": 0}


def test_every_prediction_is_written_with_its_reason_where_there_is_none(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    runs = a_table(tmp_path / "runs.csv", ROW, {**ROW, "id": "me-2", "d_model": ""})

    assert main(["runs", "score", str(runs), "--rows", str(out)]) == 0
    first, second = csv.DictReader(out.read_text(encoding="utf-8").splitlines())
    assert float(first["predicted_allocated_gib"]) <= float(first["predicted_reserved_gib"])
    assert first["predicted_fits"] == "True"
    assert second["skipped_because"] == "d_model is empty"
    assert second["predicted_reserved_gib"] == ""
    assert not list(tmp_path.glob(".*"))


@pytest.mark.parametrize(
    "value", ["nan", "inf", "-4", "0", "1e30", "10" * 40, "twelve", "=1+1", "\x00", "1e-9"]
)
@pytest.mark.parametrize(
    "column", ["seq_len", "micro_batch_per_gpu", "d_model", "n_layer", "vocab", "n_gpus"]
)
def test_a_number_that_is_none_is_skipped_or_falls_back_and_never_crashes(column: str, value: str) -> None:
    (one,) = score([{**ROW, column: value}])

    needed = column not in ("vocab", "n_gpus")
    assert bool(one.skipped_because) == needed, one.skipped_because
    if not needed:
        assert one.run is not None
        assert column in {said.values["column"] for said in one.run.fallbacks}


@pytest.mark.parametrize("value", ["nan", "inf", "-1", "1e30", "many", ""])
@pytest.mark.parametrize("column", ["peak_mem_gib", "tokens_per_s_per_gpu", "mfu"])
def test_a_measurement_that_is_none_is_not_scored(column: str, value: str) -> None:
    (one,) = score([{**ROW, column: value}])

    error = {
        "peak_mem_gib": one.memory_error, "tokens_per_s_per_gpu": one.rate_error, "mfu": one.mfu_error
    }[column]  # fmt: skip
    assert one.estimate is not None
    assert error is None


@pytest.mark.parametrize("value", ["-3", "nan", "inf", "0", "1e308", "many"])
@pytest.mark.parametrize("column", ["peak_mem_gib", "tokens_per_s_per_gpu", "mfu"])
def test_a_measurement_that_cannot_be_is_named_and_not_counted(
    column: str, value: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out.csv"
    runs = a_table(tmp_path / "runs.csv", {**ROW, column: value})
    _, answer = scored(capsys, str(runs), "--rows", str(out))

    said = f"{column} is '{value}'"
    assert answer["data"]["skipped"] == {said: 1}
    assert answer["data"]["skipped_codes"][0]["reason"]["code"] == "accuracy.column_is"
    assert answer["data"]["fits"]["tried"] == (column != "peak_mem_gib")
    assert said in out.read_text(encoding="utf-8")


def test_utilization_is_a_share_and_an_id_counts_once() -> None:
    found = report(score([ROW, {**ROW, "peak_mem_gib": "99"}, {**ROW, "id": "", "mfu": "5"}]))

    assert found.mfu_tried == 1
    assert found.fits_tried == 2
    assert {str(reason): n for reason, n in found.skipped} == {"id 'me-1' repeated": 1, "mfu is '5'": 1}


def test_a_fraction_is_no_size_and_is_named_where_the_row_can_do_without() -> None:
    (one,) = score([{**ROW, "micro_batch_per_gpu": "2.5"}])
    (other,) = score([{**ROW, "vocab": "50304.4", "seq_len": "1024.0"}])

    assert str(one.skipped_because) == "micro_batch_per_gpu is '2.5'"
    assert other.run is not None
    assert (other.run.model.vocab, other.run.training.sequence_tokens) == (50304, 1024)
    assert [str(each) for each in other.run.fallbacks] == ["vocab '50304.4' read as 50,304"]


@pytest.mark.parametrize("big", ["999999999999", "100000000000000"])
def test_a_monstrous_shape_gets_an_answer_and_no_overflow(big: str) -> None:
    (one,) = score([{**ROW, "d_model": big, "n_head": "1", "n_layer": big, "seq_len": big}])

    assert one.skipped_because or (one.estimate is not None and not one.estimate.fits)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        (b"", "columns: id"),
        (b"id,model\n1,gpt2\n", "columns: gpu"),
        (b"\x89PNG\r\n\x1a\n\x00\x00\xff\xfe", "not a CSV"),
        (b"id,model,gpu,seq_len,micro_batch_per_gpu\n\xff\xfe\n", "not a CSV"),
        (b"id,model,gpu,seq_len,micro_batch_per_gpu\n", "has no rows"),
        (b'id,model,gpu,seq_len,micro_batch_per_gpu\n"' + b"x" * 200_000 + b'",a,b,c,d\n', "not a CSV"),
    ],
    ids=["empty", "missing columns", "a picture", "not UTF-8", "no rows", "an endless field"],
)
def test_a_file_that_is_no_table_is_refused_with_the_reason(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], content: bytes, says: str
) -> None:
    path = tmp_path / "runs.csv"
    path.write_bytes(content)

    code, answer = scored(capsys, str(path))
    assert code == 2
    assert says in answer["error"]["problem"]
    assert answer["error"]["hint"]


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "runs.csv"
    with path.open("wb") as file:
        file.truncate(MAX_BYTES + 1)  # a hole: nothing is written

    code, answer = scored(capsys, str(path))
    assert code == 2
    assert f"{MAX_BYTES + 1:,} bytes" in answer["error"]["problem"]


@pytest.mark.parametrize("name", ["absent.csv", "."])
def test_a_path_that_is_no_file_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    code, answer = scored(capsys, str(tmp_path / name))

    assert code == 2
    assert answer["error"]["hint"]


@pytest.mark.parametrize("command", ["score", "calibrate"])
def test_a_device_without_end_and_a_pipe_without_writer_are_refused_at_once(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], command: str
) -> None:
    pipe = tmp_path / "runs.csv"
    os.mkfifo(pipe)

    for path in ("/dev/zero", str(pipe)):
        assert main(["runs", command, path, "--json"]) == 2
        reason = json.loads(capsys.readouterr().out)["error"]["reason"]
        assert (reason["code"], reason["path"]) == ("configs.path_is", path)


def test_a_file_that_grows_past_the_bound_while_it_is_read_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(reader, "MAX_BYTES", 100)
    code, answer = scored(capsys, "/proc/cpuinfo")  # says that it has 0 bytes

    assert code == 2
    assert "101 bytes" in answer["error"]["problem"]


def test_a_table_that_a_spreadsheet_marked_as_utf_8_is_read(tmp_path: Path) -> None:
    path = a_table(tmp_path / "runs.csv", ROW)
    path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes())

    assert [row["id"] for row in read_rows(path)] == ["me-1"]


def test_a_short_row_whose_id_is_missing_is_read_without_a_name(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    names = [name for name in ROW if name != "id"]
    path.write_text(",".join([*names, "id"]) + "\n" + ",".join(ROW[name] for name in names) + "\n")

    (one,) = score(read_rows(path), quality={})
    assert (one.source, one.skipped_because) == ("", None)
    calibrate(score([{**one.row, "peak_mem_gib": "9999"}]))  # set aside, by no name


@pytest.mark.parametrize(
    ("parallelism", "gpus", "reads", "says"),
    [
        ("zero-0", "8", {"sharding": "ddp", "shards": 1, "gpus": 8}, ""),
        ("zero-2", "8", {"sharding": "zero2", "shards": 8, "gpus": 8}, ""),
        ("zero-4", "8", {"sharding": "zero3", "shards": 8}, "parallelism 'zero-4' read as ZeRO-3"),
        ("tp0", "1", {"tensor": 1}, ""),
        ("fsdp, tp x0", "8", {"tensor": 1, "sharding": "zero3", "shards": 8}, ""),
        ("tp x8", "", {"tensor": 8, "gpus": 8}, "n_gpus '' read as 8"),
        ("tp x8", "1", {"tensor": 8, "gpus": 8}, "n_gpus '1' read as 8"),
        ("tp x4", "10", {"tensor": 4, "gpus": 8}, "n_gpus '10' read as 8"),
        ("pp" + "9" * 5000, "1", {"pipeline": 999999}, "n_gpus '1' read as 999,999"),
    ],
)
def test_a_parallelism_that_cannot_be_is_read_as_the_nearest_that_can_and_named(
    parallelism: str, gpus: str, reads: dict[str, Any], says: str
) -> None:
    run = understand({**ROW, "parallelism": parallelism, "n_gpus": gpus})

    assert {name: getattr(run.training, name) for name in reads} == reads
    assert any(str(said) == says for said in run.fallbacks) if says else not run.fallbacks


@pytest.mark.parametrize(
    ("gpu", "name", "listed"),
    [
        ("A100-SXM-80GB", "a100-sxm-80gb", False),
        ("A100-SXM-80GB (as stated)", "a100-sxm-80gb", False),
        ("A100-SXM", "a100-sxm-80gb", True),
        ("RTX 4090-48GB", "rtx-4090", True),
        ("RTX 4090 (48 GB)", "rtx-4090", True),
    ],
)
def test_a_card_whose_size_was_made_up_or_lost_is_listed(gpu: str, name: str, listed: bool) -> None:
    run = understand({**ROW, "gpu": gpu})

    assert run.gpu.name == name
    assert [said.values["column"] for said in run.fallbacks] == ["gpu"] * listed


@pytest.mark.parametrize("gpu", ["V100-SXM2-16GB", "T4", "A100-SXM-80GB"])
def test_the_release_of_pytorch_is_read_from_its_column_and_never_from_the_card(gpu: str) -> None:
    today = understand({**ROW, "gpu": gpu, "optimizer": "AdamW", "compile": "no"})
    then = understand({**ROW, "gpu": gpu, "optimizer": "AdamW", "compile": "no", "torch": "1.10.1"})
    unread = understand({**ROW, "gpu": gpu, "torch": "a nightly"})

    assert today.training.torch is CURRENT
    assert today.training.optimizer_kernel == "foreach"
    assert not today.fallbacks
    assert then.training.torch.keeps_gradients
    assert then.training.torch.softmax_keeps_input
    assert (then.training.optimizer_kernel, then.training.attention) == ("loop", "math")
    (said,) = unread.fallbacks
    assert (said.values["column"], said.values["taken"]) == ("torch", CURRENT.release)


def test_the_optimizer_of_transformers_is_a_loop_on_every_card() -> None:
    assert understand({**ROW, "optimizer": "AdamW (HF)"}).training.optimizer_kernel == "loop"


def test_gpt_neo_writes_its_scores_whatever_the_row_is_called_after() -> None:
    run = understand({**ROW, "model": "EleutherAI/gpt-neo-125m", "attention": "sdpa"})

    assert run.model.writes_scores
    assert written_out(run.model, run.training)


COLUMNS = [*ROW, "torch", "n_kv_head", "d_ff", "n_params", "parallelism", "grad_accum", "attention",
           "activation_checkpointing", "fused_ce_or_chunked_loss", "source_repo_or_url"]  # fmt: skip
words = st.lists(
    st.sampled_from([
        "offload", "\x00",
        "zero", "zero-", "-", "tp", "pp", "cp", "x", " ", ",", "fsdp", "ddp", "hsdp", "shard_grad_op",
        "0", "1", "3", "7", "8", "64", "999999999", "٣", "nan", "inf", "-1", "1e400", "fp32", "fp16", "fp8",
        "bf16", "amp", "mixed", "params", "pure", "master", "nf4", "lora", "adapter", "8bit", "muon", "sgd",
        "litgpt", "on adapter only", "bert", "gpt-neo", "gemma-2", "qwen3", "classification", "V100", "P100",
        "MI300X", "4090", "-48GB", "(40GB)", "H100", "full", "selective", "chunk", "fused", "yes", "oom",
    ]),
    max_size=4,
).map("".join)  # fmt: skip


@settings(max_examples=400, deadline=None)
@given(
    st.dictionaries(st.sampled_from(COLUMNS), st.one_of(words, st.text(max_size=12), st.none()), max_size=5)
)
def test_whatever_stands_in_a_column_the_row_is_predicted_or_skipped(said: dict[str, Any]) -> None:
    scores = score([{**ROW, **said}])

    report(scores)
    calibrate(scores)
    (one,) = scores
    assert bool(one.skipped_because) == (one.estimate is None)
    if one.run is not None:
        training = one.run.training
        copy = training.tensor * training.pipeline
        assert training.gpus % (copy * training.context) == 0
        assert training.shards * copy <= training.gpus
        assert 1 <= training.targets <= 7


def test_a_row_shorter_or_longer_than_the_header_is_read_as_far_as_it_goes(tmp_path: Path) -> None:
    path = tmp_path / "runs.csv"
    path.write_text("id,model,gpu,seq_len,micro_batch_per_gpu,d_model,n_layer\nshort,gpt2\n"
                    "long,gpt2,A100-SXM-80GB,64,1,64,2,more,and,more\n")  # fmt: skip

    short, long = score(read_rows(path))
    assert short.skipped_because == say("accuracy.no_gpu")
    assert long.estimate is not None


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    runs = a_table(tmp_path / "runs.csv", ROW)

    code, answer = scored(capsys, str(runs), "--rows", str(tmp_path / "no" / "out.csv"))
    assert code == 3
    assert "cannot write" in answer["error"]["problem"]
