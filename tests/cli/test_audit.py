"""`brimful audit` as people and programs call it."""

from __future__ import annotations

import csv
import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from brimful.cli.main import main

SACCT = """JobID|User|Account|Partition|Submit|Eligible|Start|End|State|AllocTRES|NodeList
1|ann|vision|p|2026-05-01T00:00:00|2026-05-01T00:00:00|2026-05-01T00:00:00|2026-05-01T12:00:00|COMPLETED|gres/gpu=8|n1
2|bob|speech|p|2026-05-01T00:00:00|2026-05-01T00:00:00|2026-05-01T06:00:00|2026-05-01T18:00:00|FAILED|gres/gpu=4|n2
"""
PAID = """place,gpu,gpus,start,end,usd_per_gpu_hour,kind
n1,a100-sxm-80gb,8,2026-05-01,2026-05-02,2.00,paid
n2,a100-sxm-80gb,8,2026-05-01,2026-05-02,2.00,paid
"""


@pytest.fixture
def usage(tmp_path: Path) -> Path:
    (tmp_path / "sacct.txt").write_text(SACCT)
    (tmp_path / "paid.csv").write_text(PAID)
    return tmp_path


def answer(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    assert main(["audit", *words, "--json"]) == 0
    found: dict[str, Any] = json.loads(capsys.readouterr().out)
    assert found["ok"]
    return dict(found["data"])


def test_every_paid_hour_in_a_leaf_with_its_money(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, str(usage))

    leaves = {leaf["path"]: (leaf["gpu_h"], leaf["microusd"]) for leaf in data["leaves"]}
    assert data["paid_gpu_h"] == 384
    assert data["paid_usd"] == 768
    assert data["money_is"] == "paid"
    assert leaves["allocated.kept"] == (96, 192_000_000)
    assert leaves["allocated.lost"] == (48, 96_000_000)
    assert leaves["unallocated.own_queue.fits"] == (24, 48_000_000)  # job 2 waited six hours beside free GPUs
    assert sum(gpu_h for path, (gpu_h, _) in leaves.items() if "." not in path) == 384
    assert data["jobs"][0]["job"] == "2"


def test_the_table_for_people(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", str(usage)]) == 0
    said = capsys.readouterr().out

    assert "Paid: 384 GPU-hours for $768.00" in said
    assert re.search(r"own queue waiting +24\.0 +6\.25 % +\$48\.00", said)
    assert re.search(r"2 +bob +48\.0 +lost", said)


def test_a_list_price_is_not_called_cost(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (usage / "paid.csv").write_text(PAID.replace(",2.00,paid", ",,"))
    assert answer(capsys, str(usage))["paid_usd"] is None
    assert answer(capsys, str(usage), "--prices", "list")["money_is"] == "list"
    assert main(["audit", str(usage), "--prices", "list"]) == 0
    assert "list prices (not the actual cost)" in capsys.readouterr().out


def test_the_csv_adds_up(usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "leaves.csv"
    assert main(["audit", str(usage), "--csv", str(out)]) == 0
    rows = list(csv.DictReader(out.read_text().splitlines()))

    assert sum(int(row["gpu_seconds"]) for row in rows) == 384 * 3600
    assert sum(int(row["microusd"]) for row in rows) == 768_000_000
    assert {row["team"] for row in rows} >= {"vision", "speech"}


def test_the_page_needs_nothing_else(usage: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = tmp_path / "audit.html"
    assert main(["audit", str(usage), "--size", "--policy", "fifo", "--html", str(out), "--lang", "de"]) == 0
    page = out.read_text()

    assert not re.search(r"(src|href)=|<script|@import|url\(", page)
    assert 'lang="de"' in page
    assert "Wohin es ging" in page
    assert "Kalibrierung" in page


def test_a_hostile_name_is_text_on_the_page(usage: Path, tmp_path: Path) -> None:
    (usage / "sacct.txt").write_text(SACCT.replace("bob", "<script>alert(1)</script>"))
    out = tmp_path / "audit.html"
    assert main(["audit", str(usage), "--html", str(out)]) == 0
    assert "<script>" not in out.read_text()


def test_how_few_would_have_been_enough(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, str(usage), "--size", "--policy", "fifo", "--policy", "brim")

    assert [(size["policy"], size["gpus"], size["fleet_gpus"]) for size in data["size"]] == [
        ("fifo", 16, 16),
        ("brim", 16, 16),
    ]
    assert data["size"][0]["explained"] == 0.0  # on these two nodes job 2 need not have waited
    assert data["size"][0]["lower_bound"]


def test_a_price_is_found_however_the_type_is_spelled_and_a_missing_one_is_named(
    usage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    prices = usage / "prices.toml"
    prices.write_text("v100-sxm-32gb = 1.5\n")
    rest = ("--prices", str(prices), "--from", "2026-05-01", "--to", "2026-05-02")
    data = answer(capsys, str(usage / "sacct.txt"), "--fleet", "3x8:v100-sxm2-32gb", *rest, "--size")
    assert data["paid_usd"] == 576 * 1.5
    assert data["coverage"]["unpriced"] == []
    assert data["actions"][0]["usd_per_month"] > 0  # also of a fleet that --fleet names
    data = answer(capsys, str(usage / "sacct.txt"), "--fleet", "2x8:mystery", *rest)
    assert (data["paid_usd"], data["coverage"]["unpriced"]) == (None, ["mystery"])


def test_a_fleet_that_is_not_enough_is_told_with_numbers(
    usage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["audit", str(usage / "sacct.txt"), "--fleet", "8x2:a100-sxm-80gb", "--size"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "2 of 2 jobs never start on 16 GPUs. The widest needs 8 GPUs on one node" in said
    assert "at most 2 GPUs" in said


def test_a_trace_on_a_named_fleet_says_how_many_to_return(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    trace = tmp_path / "jobs.csv"
    trace.write_text("job,submit_s,run_s,gpus\na,0,3600,4\nb,4000,3600,4\n")
    data = answer(capsys, str(trace), "--size", "--fleet", "4x4:a100-sxm-80gb@2")
    assert [(each["action"], each["gpus"]) for each in data["actions"]] == [
        ("return_gpus", 12),
        ("renew", 12),
    ]
    assert data["actions"][0]["usd_per_month"] == 12 * 2 * 730
    assert main(["audit", str(trace), "--size", "--from", "2026-05-01", "--to", "2026-05-02"]) == 2
    assert "--from and --to cannot cut 'jobs.csv': its times are not dates" in capsys.readouterr().err
    assert main(["audit", str(trace), "--size", "--fleet", "4x4:a100-sxm-80gb@2"]) == 0
    assert "Audit, dates unknown" not in capsys.readouterr().out  # no empty tree above the sizes


def test_a_trace_with_dates_is_cut_to_the_window(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "philly.csv"
    days = ["2017-10-01 00:00:00,3600,8,28800,vc", "2017-10-02 23:30:00,3600,1,3600,vc"]
    trace.write_text("\n".join(["timestamp,duration,num_gpus,gpu_time,cluster", *days]))

    def gpus(*window: str) -> object:
        size = ("--size", "--policy", "fifo", "--fleet", "16x1:v100-sxm2-32gb")
        return answer(capsys, str(trace), *size, *window)["size"][0]["gpus"]

    assert gpus() == 8
    assert gpus("--from", "2017-10-02") == 1
    assert gpus("--to", "2017-10-02") == 8
    # The trace's own times are of the zone that is given, and so is a day; a time with a zone is converted.
    assert gpus("--from", "2017-10-02T23:30", "--zone", "Europe/Paris") == 1
    assert gpus("--from", "2017-10-02T21:30+00:00", "--zone", "Europe/Paris") == 1
    assert main(["audit", str(trace), "--size", "--from", "2018-01-01"]) == 2
    assert "2 jobs, and none was submitted between --from and --to" in capsys.readouterr().err


def test_a_window_within_a_day_has_its_hours_and_small_amounts_their_digits(
    usage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    day = "2026-05-01T"
    assert main(["audit", str(usage), "--from", f"{day}00:00", "--to", f"{day}00:01"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("Audit, 2026-05-01 00:00:00 to 2026-05-01 00:01:00\nPaid: 0.267 GPU-hours")
    assert re.search(r"kept +0\.133 ", said)


def test_a_trace_without_starts_can_only_be_sized(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", "examples/small.csv"]) == 2
    assert "--size" in capsys.readouterr().err
    data = answer(capsys, "examples/small.csv", "--size", "--policy", "fifo")
    assert data["size"][0]["lower_bound"]


@pytest.mark.parametrize(
    "words",
    [
        ["nowhere"],
        ["{usage}", "--zone", "Mars/Olympus"],
        ["{usage}", "--from", "2026-05-02", "--to", "2026-05-01"],
        ["{usage}", "--from", "yesterday"],
        ["{usage}/sacct.txt"],
        ["{usage}", "--policy", "best", "--size"],
    ],
)
def test_bad_input_has_a_hint(usage: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["audit", *[word.format(usage=usage) for word in words]]) == 2
    assert "hint:" in capsys.readouterr().err


def refused(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["audit", *words]) == 2
    return capsys.readouterr().err


def test_a_price_for_a_part_is_told_as_a_part(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (usage / "paid.csv").write_text(
        PAID.replace(
            "n2,a100-sxm-80gb,8,2026-05-01,2026-05-02,2.00", "n2,a100-sxm-80gb,8,2026-05-01,2026-05-02,"
        )
    )
    assert main(["audit", str(usage), "--size"]) == 0
    said = " ".join(capsys.readouterr().out.split())
    assert "Paid: 384 GPU-hours; 192 of them for $384.00, the rest has no price" in said
    assert "No price for a100-sxm-80gb, so no cost is shown for them" in said
    assert "a month" not in said  # of a node without a price nobody knows what its return saves


def test_a_price_may_name_a_type_as_the_sources_do(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    prices = usage / "prices.csv"
    fleet = (str(usage / "sacct.txt"), "--fleet", "2x8:a100", "--prices", str(prices))
    prices.write_text("gpu,usd_per_gpu_hour\na100,1.50\n")
    assert answer(capsys, *fleet)["paid_usd"] == 16 * 18 * 1.5
    prices.write_text("a100,1,50\n")
    assert "'a100,1,50' is not a card and its price" in refused(capsys, *fleet)
    prices.write_text("gpu,eur_per_gpu_hour\na100,1.50\n")
    assert "prices must be in dollars, but the header says 'eur_per_gpu_hour'" in refused(capsys, *fleet)
    prices.write_text("a100,1.50 EUR\n")
    assert "'1.50 EUR' is not a price for a100" in refused(capsys, *fleet)


def test_a_list_price_is_named_beside_every_sum(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fleet = ("--fleet", "6x8:a100-sxm-80gb", "--prices", "list", "--size")
    assert main(["audit", str(usage / "sacct.txt"), *fleet]) == 0
    said = capsys.readouterr().out
    assert re.search(r"\$[\d,.]+ a month at list prices\.", said)


def test_one_end_of_the_window_is_enough(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = answer(capsys, str(usage), "--from", "2026-05-01T12:00")
    assert (data["from"][:16], data["to"][:16]) == ("2026-05-01T12:00", "2026-05-02T00:00")
    assert answer(capsys, str(usage), "--to", "2026-05-01T12:00")["paid_gpu_h"] == 192
    assert "--from 'yesterday' is not a time" in refused(capsys, str(usage), "--from", "yesterday")
    assert "is empty" in refused(capsys, str(usage), "--from", "2026-05-02", "--to", "2026-05-01")
    assert main(["audit", str(usage), "--from", "2026-05-01T20:00"]) == 0
    assert "No job ran in this window; 2 jobs of the sources ran outside it." in capsys.readouterr().out


@pytest.mark.parametrize("option", [["--alone"], ["--policy", "fifo"], ["--deferrable", "p"]])
def test_an_option_of_sizing_is_not_ignored(
    usage: Path, option: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{option[0]} needs --size" in refused(capsys, str(usage), *option)


def test_sources_without_a_tree_say_what_is_missing(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sinfo = {"nodes": [{"name": "n1", "gres": "gpu:a100:8", "state": "idle", "partitions": ["p"]}]}
    (usage / "sinfo.json").write_text(json.dumps(sinfo))
    assert "name 8 GPUs, but no times" in refused(capsys, str(usage / "sinfo.json"))
    dcgm = usage / "dcgm.txt"
    dcgm.write_text('DCGM_FI_DEV_GPU_UTIL{gpu="0",Hostname="n1"} 50\nDCGM_FI_DEV_GPU_UTIL 3\n')
    assert "what GPUs did, but not which jobs ran" in refused(capsys, str(dcgm))
    (usage / "cpu.txt").write_text(SACCT.replace("gres/gpu", "cpu"))
    assert "can count: 2 jobs without GPUs left out" in refused(capsys, str(usage / "cpu.txt"))
    assert "add --size" in refused(capsys, "examples/small.csv", "--fleet", "2x4:a100-sxm-80gb")
    assert "leave --csv out" in refused(capsys, "examples/small.csv", "--size", "--csv", str(usage / "x.csv"))
    (usage / "none").mkdir()
    assert "holds no files" in refused(capsys, str(usage / "none"))


def test_a_file_of_no_known_kind_is_told_what_is_read(
    usage: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("x.json", '{"a": 1}'), ("x.png", "\x89PNG"), ("x.csv", "a,b\n1,2\n")):
        (usage / name).write_text(text)
        said = refused(capsys, str(usage / name))
        assert "does not recognize the format of" in said
        assert "it reads sacct" in said
    (usage / "x.csv").write_text("")
    assert "x.csv is empty" in refused(capsys, str(usage / "x.csv"))
    os.mkfifo(usage / "pipe")
    assert "is not a regular file" in refused(capsys, str(usage / "pipe"))
    (usage / "paid.csv").write_text(PAID.replace("usd_per", "eur_per"))
    assert "unknown columns: 'eur_per_gpu_hour'" in refused(capsys, str(usage))
    (usage / "paid.csv").write_text(PAID.replace("gb,8", "gb,eight"))
    assert "paid.csv row 2: gpus cannot be 'eight'" in refused(capsys, str(usage))


def test_one_of_something_is_told_in_the_singular(usage: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (usage / "note.md").write_text("a note")
    (usage / "sacct.txt").write_text(
        SACCT + "3|c|c|p|2026-05-01|2026-05-01|2026-05-01|2026-05-02|COMPLETED|cpu=1|n3\n"
    )
    assert main(["audit", str(usage)]) == 0
    said = capsys.readouterr().out
    assert "1 job without GPUs left out" in said
    assert "1 file in folders left out" in said
