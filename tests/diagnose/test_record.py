"""A measured run goes into the table, and `score` and `calibrate` read it there."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from brimful.accuracy.runs import read_rows, understand
from brimful.cli.main import main
from brimful.configs.read import read
from brimful.configs.reading import Reading
from brimful.diagnose.record import COLUMNS, append_rows, rows_of
from brimful.errors import Refused
from brimful.fit.fit import estimate
from brimful.meter.samples import EndSample, RunSample, Sample, StepSample, as_line
from brimful.specs.gpu import find_gpu
from brimful.units import GIB
from tests.conftest import ROOT
from tests.patience import PATIENCE_S

CONFIG = str(ROOT / "examples" / "nanogpt" / "train_fineweb.py")
CARD = find_gpu("rtx-4070")


def a_reading(*overrides: str, model: str | None = None) -> Reading:
    return read(None if model else CONFIG, model=model, overrides=overrides)


def measured(reading: Reading, *, times: float = 1.0, pid: int = 7, **more: Any) -> list[Sample]:
    """Samples of a run that needs and takes `times` what is predicted."""
    found = estimate(reading.model, reading.training, CARD, correction=None)
    step_s = times * found.speed.step_s.likely
    each: dict[str, Any] = {
        "tokens": reading.training.step_tokens,
        "mfu": found.speed.mfu.likely / times,
        "peak_reserved_bytes": round(times * found.memory.reserved_bytes.likely),
        "peak_allocated_bytes": round(times * found.memory.allocated_bytes.likely),
    }
    steps = [StepSample(at_s=100.0 + n, step=n, step_s=step_s, warmup=n < 3, **each) for n in range(12)]
    run = RunSample(
        at_s=1_800_000_000, pid=pid, host="desk", gpu="NVIDIA GeForce RTX 4070", device="cuda:0",
        torch="2.13.0+cu130", **more,
    )  # fmt: skip
    return [run, *steps, EndSample(at_s=200.0, steps=12, steady_steps=9, wall_s=100.0)]


def written(path: Path, samples: list[Sample]) -> str:
    path.write_text("".join(f"{as_line(sample)}\n" for sample in samples))
    return str(path)


@pytest.mark.parametrize(
    ("model", "overrides"),
    [
        (None, ("batch_size=8",)),
        (None, ("compile=False", "dtype=float16", "bias=True")),
        ("gpt2", ("batch_size=4", "seq_len=1024")),
        ("llama-3.2-1b", ("batch_size=2", "checkpointing=full", "precision=bf16", "optimizer=adam8bit")),
        ("llama-3.1-8b", ("lora=True", "rank=8", "targets=2", "fused_loss=True")),
        ("qwen3-0.6b", ("loss_chunks=8", "attention=math", "optimizer=adamw-foreach")),
    ],
)
def test_a_row_reads_back_as_what_was_run(model: str | None, overrides: tuple[str, ...]) -> None:
    reading = a_reading(*overrides, model=model)
    found = rows_of(measured(reading), reading, CARD, source="desk")

    again = understand(found.rows[0])

    # What the table has no words for is told, and only that.
    told = {what.values.get("field") for what in found.unsaid}
    same = {"framework", "torch", "tf32", "loss_compiled"} | told
    for name in reading.training.__slots__:
        assert name in same or getattr(again.training, name) == getattr(reading.training, name), name
    assert replace(again.model, name="") == replace(reading.model, name="") or told
    assert not {"batch_size", "checkpointing", "optimizer", "dtype", "casts", "tuning", "rank"} & told
    ours, theirs = (
        estimate(r.model, r.training, CARD, correction=None).memory.reserved_bytes.likely
        for r in (reading, again)
    )
    assert theirs == pytest.approx(ours, rel=0.001)


def test_each_counter_has_its_row_and_speed_stands_once() -> None:
    reading = a_reading()
    first, second = rows_of(measured(reading), reading, CARD, source="desk").rows

    assert (first["mem_kind"], second["mem_kind"]) == ("reserved_peak", "allocated_peak")
    assert first["id"] == "desk-20270115T080000-7"
    likely = estimate(reading.model, reading.training, CARD, correction=None)
    assert float(first["peak_mem_gib"]) == pytest.approx(likely.memory.reserved_bytes.likely / GIB, abs=1e-4)
    assert float(first["tokens_per_s_per_gpu"]) == pytest.approx(likely.speed.tokens_per_s.likely, abs=0.1)
    assert second["tokens_per_s_per_gpu"] == ""


def test_score_and_calibrate_learn_from_recorded_runs(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Four runs that need a tenth more than predicted become a factor of 1.1, by commands alone."""
    table = tmp_path / "my_runs.csv"
    for pid, batch in enumerate((2, 4, 8, 16), start=1):
        reading = a_reading(f"batch_size={batch}")
        samples = written(tmp_path / f"{pid}.jsonl", measured(reading, times=1.1, pid=pid))
        ran = ["--config", CONFIG, "--set", f"batch_size={batch}"]
        assert main(["runs", "record", samples, "--to", str(table), *ran]) == 0
    rows = list(read_rows(table))
    assert len(rows) == 8
    assert list(rows[0]) == list(COLUMNS)
    capsys.readouterr()

    assert main(["runs", "score", str(table), "--json"]) == 0
    score = json.loads(capsys.readouterr().out)["data"]
    assert json.dumps(score).count("0.0909") or json.dumps(score).count("0.091"), score
    assert main(["runs", "calibrate", str(table), "--json"]) == 0
    factors = json.loads(capsys.readouterr().out)["data"]
    assert json.dumps(factors).count("1.1"), factors


def test_the_config_is_found_by_the_runs_own_command(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    script = str(ROOT / "examples" / "nanogpt" / "train.py")
    reading = a_reading("batch_size=8")
    samples = measured(reading, command=(script, CONFIG, "--batch_size=8"))

    assert (
        main(["runs", "record", written(tmp_path / "r.jsonl", samples), "--to", str(tmp_path / "t.csv")]) == 0
    )

    [row, _] = list(read_rows(tmp_path / "t.csv"))
    assert (row["micro_batch_per_gpu"], row["grad_accum"], row["n_layer"]) == ("8", "32", "12")
    assert "wrote" in capsys.readouterr().out


def test_another_config_than_was_run_is_refused() -> None:
    with pytest.raises(Refused) as caught:
        rows_of(measured(a_reading()), a_reading("batch_size=4"), CARD, source="x")
    assert caught.value.said.as_dict()["code"] == "accuracy.other_tokens"


def test_too_short_a_run_is_no_measurement() -> None:
    with pytest.raises(Refused) as caught:
        rows_of(measured(a_reading())[:6], a_reading(), CARD, source="x")
    assert caught.value.said.as_dict() == {"code": "accuracy.too_few_steps", "steps": 2}


def test_a_run_is_not_written_twice_and_other_rows_stay_as_they_are(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    mine = (
        'id,model,gpu,seq_len,micro_batch_per_gpu,n_layer,d_model,my_note\r\nown-1,gpt,4070,1,1,1,64,"a, b"'
    )
    table.write_text(mine, newline="")
    rows = rows_of(measured(a_reading()), a_reading(), CARD, source="desk").rows

    assert append_rows(table, rows) == [row["id"] for row in rows]
    assert append_rows(table, rows) == []

    text = table.read_bytes().decode()
    assert text.startswith(mine)
    assert [row["id"] for row in read_rows(table)] == ["own-1", *(row["id"] for row in rows)]
    assert list(tmp_path.iterdir()) == [table]


WRITER = """
import sys
from pathlib import Path
from brimful.diagnose.record import COLUMNS, append_rows
for n in range(25):
    append_rows(Path(sys.argv[1]), [dict.fromkeys(COLUMNS, "1") | {"id": f"{sys.argv[2]}-{n}"}])
"""


def test_two_that_write_at_once_lose_nothing(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(table), name]) for name in "ab"]
    assert [writer.wait(PATIENCE_S) for writer in writers] == [0, 0]

    with table.open(newline="") as file:
        ids = [row["id"] for row in csv.DictReader(file)]
    assert sorted(ids) == sorted(f"{name}-{n}" for name in "ab" for n in range(25))
