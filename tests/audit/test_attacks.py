"""Files that somebody broke, or made to break the audit: read, counted, or refused by name."""

from __future__ import annotations

import base64
import csv
import gzip
import io
import json
import os
import socket
import threading
from pathlib import Path

import pytest

from brimful.audit.page import page
from brimful.audit.readers import read as reading
from brimful.audit.readers.read import Asked, read
from brimful.audit.records import Records
from brimful.audit.report import as_csv, report
from brimful.audit.sweep import sweep
from brimful.errors import BadInput, WorldFailed

NAMES = "JobID|JobName|User|Account|Submit|Eligible|Start|End|State|AllocTRES|NodeList"
DAY = "2026-05-01T00:00:00"
PAID = "place,gpu,gpus,start,end,usd_per_gpu_hour\nn1,a100-sxm-80gb,8,2026-05-01,2026-05-02,2.00\n"
BEGAN = '{"kind":"run","at_s":1777593600,"pid":1,"host":"n1","job":"1","device":"cuda:0"}\n'


def a_row(job: str = "1", **cells: str) -> str:
    usual = {"JobName": "train", "User": "ann", "Account": "vision", "Submit": DAY, "Eligible": DAY}
    usual |= {"Start": DAY, "End": "2026-05-01T12:00:00", "State": "FAILED", "AllocTRES": "gres/gpu=8"}
    return "|".join(({"JobID": job, "NodeList": "n1"} | usual | cells)[name] for name in NAMES.split("|"))


def audited(folder: Path, **files: str) -> Records:
    (folder / "paid.csv").write_text(PAID)
    for name, text in files.items():
        (folder / name).write_text(text)
    return read([str(folder)], Asked())


@pytest.mark.parametrize("when", ["1800-01-01T00:00:00", "9999-12-31T00:00:00", "9" * 400, "-5", "NaN"])
def test_a_job_at_a_time_that_cannot_be_is_counted(tmp_path: Path, when: str) -> None:
    records = audited(tmp_path, sacct="\n".join((NAMES, a_row(), a_row("2", End=when))) + "\n")

    assert [run.job for run in records.runs] == ["1"]
    assert records.left_out["bad_row"] == 1


@pytest.mark.parametrize("span", ["0001-01-01,2026-05-02", "2026-05-01,9999-12-31"])
def test_nobody_pays_for_thousands_of_years(tmp_path: Path, span: str) -> None:
    with pytest.raises(BadInput, match=r"more\.csv row 2"):
        audited(tmp_path, **{"more.csv": f"place,gpu,gpus,start,end\nn2,a100,8,{span}\n"})


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-5.0", "1e308"])
@pytest.mark.parametrize("field", ["at_s", "step_s", "data_s", "comm_s", "mfu"])
def test_a_step_that_cannot_be_is_left_out(tmp_path: Path, field: str, number: str) -> None:
    good = {"at_s": "1777593700.0", "step_s": "100.0", "data_s": "1.0", "comm_s": "1.0", "mfu": "0.5"}
    bad = good | {field: number}
    lines = [f'"{name}":{value}' for name, value in good.items()], [f'"{n}":{v}' for n, v in bad.items()]
    steps = "".join(f'{{"kind":"step","step":1,"peak_reserved_bytes":30,{",".join(x)}}}\n' for x in lines)
    records = audited(tmp_path, sacct=f"{NAMES}\n{a_row()}\n", **{"m.jsonl": BEGAN + steps})
    start_s, end_s = records.window()

    assert records.left_out["bad_sample"] == 1
    assert sum(sweep(records, start_s=start_s, end_s=end_s).tree.cells.values()) == 8 * 86400


@pytest.mark.parametrize("cost", ["nan", "inf", "-inf", "1e999999999", "1e300", "x"])
def test_a_cost_that_is_no_number_is_counted(tmp_path: Path, cost: str) -> None:
    names = (
        "EffectiveCost,BilledCost,ChargeCategory,ChargePeriodStart,ChargePeriodEnd,ResourceId,x_InstanceType"
    )
    row = f"{cost},1,Usage,2026-05-01T00:00:00Z,2026-05-02T00:00:00Z,i-1,p4d.24xlarge"
    records = audited(tmp_path, **{"bill.csv": f"{names}\n{row}\n"})

    assert records.left_out["bad_row"] == 1
    assert [paid.place for paid in records.paid] == ["n1"]


def js1(text: bytes) -> str:
    return "JS1:" + base64.b64encode(gzip.compress(text)).decode()


@pytest.mark.parametrize(
    "summary",
    [
        b'{"nodes": {"n1": [1]}}',
        b'{"nodes": {"n1": {"gpu_used_memory": {"0": "x"}, "gpu_utilization": [0]}}}',
        b'{"nodes": {"n1": {"gpu_used_memory": {"0": 1e999}, "gpu_utilization": {"0": NaN}}}}',
        '{"nodes": {"n1": {"gpu_utilization": {"²": 0}}}}'.encode(),
    ],
)
def test_a_jobstats_summary_of_any_shape_says_nothing_or_is_counted(tmp_path: Path, summary: bytes) -> None:
    records = audited(tmp_path, sacct=f"{NAMES}|AdminComment\n{a_row()}|{js1(summary)}\n")

    assert (records.memory, records.activity) == ({}, {})
    assert [run.job for run in records.runs] == ["1"]


@pytest.mark.parametrize("value", ["Inf", "-Inf", "NaN", "-1", "1e308", "9223372036854775794"])
@pytest.mark.parametrize("metric", ["DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_GPU_UTIL"])
def test_what_no_card_can_show_is_no_sample(tmp_path: Path, metric: str, value: str) -> None:
    labels = {"__name__": metric, "Hostname": "n1", "gpu": "0", "hpc_job": "1"}
    result = {"metric": labels, "values": [[1777593600, value], [1777593660, value]]}
    answer = json.dumps({"data": {"resultType": "matrix", "result": [result]}})
    records = audited(tmp_path, sacct=f"{NAMES}\n{a_row()}\n", **{"prom.json": answer})

    assert (records.memory, records.activity) == ({}, {})


@pytest.mark.parametrize("end", ["99999999999", "1e300", "-5"])
def test_a_job_of_json_at_a_time_that_cannot_be_is_counted(tmp_path: Path, end: str) -> None:
    times = f'{{"submission": 1777593600, "start": 1777593600, "end": {end}}}'
    jobs = f'{{"jobs": [{{"job_id": 1, "time": {times}}}]}}'

    assert audited(tmp_path, **{"jobs.json": jobs}).left_out["bad_row"] == 1


@pytest.mark.parametrize("at", ["1e300", "-5", "99999999999"])
def test_a_duty_cycle_at_a_time_that_cannot_be_is_counted(tmp_path: Path, at: str) -> None:
    rows = f"value,timestamp_anon,container_ip\n1,{at},a\n2,1777593600,a\n"

    assert audited(tmp_path, **{"duty.csv": rows}).left_out["bad_sample"] == 1


def test_a_pipe_or_device_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    for source in (str(tmp_path / "pipe"), "/dev/zero"):
        with pytest.raises(BadInput, match="not a regular file"):
            read([source], Asked())


ANSWERS = {
    "cut": b"HTTP/1.1 200 OK\r\nContent-Length: 9999\r\n\r\n{",
    "not http": b"\x00" * 70_000,
    "rows": b'HTTP/1.1 200 OK\r\n\r\n{"data": {"resultType": "matrix", "result": [[1]]}}',
    "deep": b"HTTP/1.1 200 OK\r\n\r\n" + b"[" * 100_000,
    "elsewhere": b"HTTP/1.1 302 Found\r\nLocation: file:///etc/passwd\r\n\r\n",
}


@pytest.mark.parametrize("answer", ANSWERS)
def test_a_server_that_is_no_prometheus_is_refused(answer: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            link, _ = server.accept()
            with link:
                link.recv(2**16)
                link.sendall(ANSWERS[answer])

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises((BadInput, WorldFailed), match=r"127\.0\.0\.1"):
            read([f"http://127.0.0.1:{server.getsockname()[1]}"], Asked(window=(0, 60)))
        thread.join()


def test_a_file_that_is_named_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "paid.csv").write_text(PAID)
    (tmp_path / "again.csv").symlink_to("paid.csv")

    assert len(read([str(tmp_path), str(tmp_path / "paid.csv")], Asked()).paid) == 1


def test_a_line_without_end_is_refused(tmp_path: Path) -> None:
    (tmp_path / "sacct.gz").write_bytes(gzip.compress(NAMES.encode() + b"\n" + b"x" * 2**21))

    with pytest.raises(BadInput, match=r"sacct\.gz row 2"):
        read([str(tmp_path)], Asked())


def test_a_cell_that_is_too_long_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"sacct cannot be read"):
        audited(tmp_path, sacct=f"{NAMES}\n{a_row(JobName='x' * 200_000)}\n")


def test_json_that_unpacks_without_end_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MOST_JSON_BYTES", 2**16)
    (tmp_path / "jobs.gz").write_bytes(gzip.compress(b'{"jobs": "' + b"x" * 2**17))

    with pytest.raises(BadInput, match=r"jobs\.gz"):
        read([str(tmp_path)], Asked())


def test_json_of_too_many_parts_for_the_memory_is_refused(tmp_path: Path) -> None:
    (tmp_path / "jobs.gz").write_bytes(
        gzip.compress(b'{"jobs": [' + b"{}," * reading.MOST_JSON_PARTS + b"{}]}")
    )

    with pytest.raises(BadInput, match=r"jobs\.gz"):
        read([str(tmp_path)], Asked())


def test_a_job_name_may_hold_line_ends_and_costs_at_most_its_own_row(tmp_path: Path) -> None:
    names = {"1": "a\nb", "2": "a|b", "3": "a\n\n\nb", "4": "a\nb|c", "5": "train"}
    rows = (a_row(job, JobName=name) for job, name in names.items())
    records = audited(tmp_path, sacct="\n".join((NAMES, *rows)) + "\n")

    assert [run.job for run in records.runs] == ["1", "3", "5"]
    assert records.left_out["bad_row"] == 3


def test_only_files_are_read_from_a_folder(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "endless").symlink_to("/dev/zero")
    (tmp_path / "up").symlink_to("..")

    assert [paid.place for paid in audited(tmp_path).paid] == ["n1"]


@pytest.mark.parametrize(
    "name", ["=HYPERLINK(1)", "+1", "-1", "@SUM(1)", "\x1b[2J", "<script>alert(1)</script>"]
)
def test_a_name_runs_in_no_spreadsheet_terminal_or_browser(tmp_path: Path, name: str) -> None:
    records = audited(tmp_path, sacct=f"{NAMES}\n{a_row(Account=name, User=name)}\n")
    start_s, end_s = records.window()
    found = sweep(records, start_s=start_s, end_s=end_s)
    teams = {row["team"] for row in csv.DictReader(io.StringIO(as_csv(found.tree)))}

    assert not [team for team in teams if team.startswith(("=", "+", "-", "@")) or "\x1b" in team]
    assert "<script" not in page(report(records, found))
