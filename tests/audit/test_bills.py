"""What was paid, and for what: bills, a plain CSV, a fleet on the command line."""

from __future__ import annotations

from datetime import UTC
from pathlib import Path

import pytest

from brimful.audit.readers.read import Asked, read
from brimful.audit.records import Records
from brimful.audit.sweep import sweep
from brimful.errors import BadInput
from brimful.sim.fleets import parse_fleet

NAMES = "ChargeCategory,EffectiveCost,ChargePeriodStart,ChargePeriodEnd,ConsumedQuantity,ConsumedUnit,"
NAMES += "ResourceName,x_InstanceType,CommitmentDiscountStatus,ChargeClass"
HOUR = "2026-05-01T00:00:00Z,2026-05-01T01:00:00Z"


@pytest.fixture
def usage(shared_data: Path) -> Path:
    return shared_data / "usage"


def from_file(path: Path) -> Records:
    return read([str(path)], Asked(window=(1_794_810_000, 1_794_820_000)))


def from_text(tmp_path: Path, text: str) -> Records:
    path = tmp_path / "usage.txt"
    path.write_text(text)
    return read([str(path)], Asked(UTC))


def test_an_hour_that_a_commitment_covers_in_part_is_one_hour_of_one_machine(tmp_path: Path) -> None:
    rows = [
        f"Usage,6,{HOUR},0.6,Hours,node-1,p4d.24xlarge,Used,",
        f"Usage,13,{HOUR},0.4,Hours,node-1,p4d.24xlarge,,",
    ]
    paid = from_text(tmp_path, "\n".join((NAMES, *rows))).paid

    assert [(p.start_s - paid[0].start_s, p.end_s - paid[0].start_s) for p in paid] == [
        (0, 2160),
        (2160, 3600),
    ]


def test_a_correction_or_a_refund_buys_no_hours(tmp_path: Path) -> None:
    rows = [
        f"Usage,19,{HOUR},1,Hours,node-1,p4d.24xlarge,,",
        f"Usage,-5,{HOUR},-0.25,Hours,node-1,p4d.24xlarge,,",
        f"Usage,-5,{HOUR},1,Hours,node-1,p4d.24xlarge,,Correction",
    ]
    records = from_text(tmp_path, "\n".join((NAMES, *rows)))

    assert [(p.gpus, p.microusd) for p in records.paid] == [(8, 19_000_000)]
    assert records.left_out == {"bad_row": 1, "bill_not_usage": 1}


def test_a_purchase_and_what_was_used_of_it_are_counted_once(usage: Path) -> None:
    records = from_file(usage / "focus_1.2_aws_purchase_and_used_rows.csv")
    assert records.left_out == {"bill_purchase": 1, "bill_no_gpu": 1}
    assert from_file(usage / "focus_1.0_sample_1000.csv.gz").left_out == {
        "bill_no_gpu": 997,
        "bill_not_usage": 3,
    }
    assert from_file(usage / "focus_1.3_contractcommitment_aws.csv").left_out == {"bill_contract": 1}


def test_a_gpu_machine_costs_its_effective_cost_and_an_unused_commitment_is_not_delivered(
    tmp_path: Path,
) -> None:
    names = "ChargeCategory,BilledCost,EffectiveCost,ChargePeriodStart,ChargePeriodEnd,ConsumedQuantity,"
    names += "ConsumedUnit,ResourceName,SkuPriceDetails,CommitmentDiscountStatus,BillingCurrency"
    hour = "2026-05-01T00:00:00Z,2026-05-01T01:00:00Z"
    p4d = '"{""InstanceType"":""p4d.24xlarge""}"'
    rows = [
        f"Purchase,87600,0,{hour},,,ri-1,,,USD",
        f"Usage,0,10.5,{hour},1,Hours,node-1,{p4d},Used,USD",
        f"Usage,0,9.5,{hour},1,Hours,ri-1,{p4d},Unused,USD",
        f"Usage,0,9.5,{hour},0.5,Hours,node-2,{p4d},,EUR",
    ]
    records = from_text(tmp_path, "\n".join((names, *rows)))

    assert [(p.place, p.gpu, p.gpus, p.microusd, p.unused) for p in records.paid] == [
        ("node-1", "a100-sxm-40gb", 8, 10_500_000, False),
        ("ri-1", "a100-sxm-40gb", 8, 9_500_000, True),
        ("node-2", "a100-sxm-40gb", 8, None, False),
    ]
    assert records.paid[2].end_s - records.paid[2].start_s == 1800
    assert records.left_out == {"bill_purchase": 1, "currency": 1}
    start_s, end_s = records.window()
    tree = sweep(records, start_s=start_s, end_s=end_s).tree
    assert tree.amount("not_delivered.unused").microusd == 9_500_000


def test_a_plain_csv_of_what_is_paid(tmp_path: Path) -> None:
    row = "n1,a100,8,2026-05-01,2026-05-02,2.50,list,a|b"
    text = f"place,gpu,gpus,start,end,usd_per_gpu_hour,kind,queues\n{row}\n"
    paid = from_text(tmp_path, text).paid[0]

    assert (paid.microusd, paid.list_price, paid.walls) == (8 * 24 * 2_500_000, True, frozenset({"a", "b"}))
    with pytest.raises(BadInput, match="row 2"):
        from_text(tmp_path, text.replace("2.50", "cheap"))


def test_a_node_that_is_seen_and_billed_is_paid_once_and_keeps_its_queues(tmp_path: Path) -> None:
    (tmp_path / "paid.csv").write_text(
        "place,gpu,gpus,start,end,usd_per_gpu_hour\nn1,a100-sxm-80gb,8,2026-05-01,2026-05-02,2\n"
    )
    (tmp_path / "sinfo.txt").write_text(
        "n1 0 9 0/0/0/9 idle gpu gpu:a100:8 gpu:a100:0(IDX:N/A)\n"
        "n2 0 9 0/0/0/9 idle gpu gpu:a100:8 gpu:a100:0(IDX:N/A)\n"
    )
    (tmp_path / "sacct.txt").write_text(
        "JobID|Submit|Start|End|AllocTRES|NodeList\n"
        "1|2026-05-01T00:00:00|2026-05-01T00:00:00|2026-05-01T10:00:00|gres/gpu:a100=8|n1\n"
    )
    records = read([str(tmp_path)], Asked())

    assert [(p.place, p.gpu, p.gpus, p.walls) for p in records.paid] == [
        ("n1", "a100-sxm-80gb", 8, frozenset({"gpu"})),
        ("n2", "a100", 8, frozenset({"gpu"})),
    ]
    start_s, end_s = records.window()
    found = sweep(records, start_s=start_s, end_s=end_s)
    assert found.tree.amount("allocated").gpu_s == 80 * 3600
    assert not found.left_out["run_gpu_s"]


def test_a_fleet_on_the_command_line_is_paid_all_the_time(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    path.write_text(
        "JobID|Submit|Start|End|AllocTRES|State\n"
        "1|2026-05-01T00:00:00|2026-05-01T00:00:00|2026-05-01T10:00:00|gres/gpu=4|COMPLETED\n"
    )
    records = read([str(path)], Asked(), parse_fleet("1x8@2"))
    start_s, end_s = records.window()
    tree = sweep(records, start_s=start_s, end_s=end_s).tree

    assert tree.amount().microusd == 80 * 2_000_000
    assert tree.amount("allocated.kept").microusd == 40 * 2_000_000
