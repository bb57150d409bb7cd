"""Every sample of the shared folder, and small files in the same form."""

from __future__ import annotations

import json
import tempfile
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import ClassVar
from urllib.parse import parse_qs, urlparse
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.audit.readers import jobstats, slurm
from brimful.audit.readers.read import Asked, read
from brimful.audit.records import Records
from brimful.audit.report import report
from brimful.audit.sweep import sweep
from brimful.errors import BadInput, NotFound, WorldFailed

WINDOW = (1_794_810_000, 1_794_820_000)
HEADS = (
    "JobID|Submit|Eligible|Start|End|State|AllocTRES|NodeList|AdminComment",
    "id_job,time_submit,time_eligible,time_start,time_end,tres_alloc,nodelist,state",
    "ChargeCategory,EffectiveCost,ChargePeriodStart,ChargePeriodEnd,ConsumedQuantity,ConsumedUnit,SkuPriceDetails",
    "place,gpu,gpus,start,end,usd_per_gpu_hour,kind,queues",
    "# HELP DCGM_FI_DEV_GPU_UTIL percent",
    "n1 0 9 0/0/0/9 idle gpu gpu:a100:8 gpu:a100:0(IDX:N/A)",
    "Cluster|TRES Name|Allocated|Down|PLND Down|Idle|Planned|Reported",
)


@pytest.fixture
def usage(shared_data: Path) -> Path:
    return shared_data / "usage"


def from_file(path: Path, **more: object) -> Records:
    return read([str(path)], Asked(window=WINDOW, **more))  # type: ignore[arg-type]


def from_text(tmp_path: Path, text: str, zone: str = "UTC") -> Records:
    path = tmp_path / "usage.txt"
    path.write_text(text)
    return read([str(path)], Asked(UTC if zone == "UTC" else ZoneInfo(zone)))


# -- Helios ------------------------------------------------------------------------------------------------


def test_helios_earth_in_may_2020(shared_data: Path) -> None:
    pytest.importorskip("pyarrow")
    records = read([str(shared_data / "traces" / "helios" / "earth_vc_sequence_1min.parquet")], Asked())
    start_s, end_s = records.window()
    tree = sweep(records, start_s=start_s, end_s=end_s).tree

    paid = tree.amount().gpu_s
    assert paid == 636_864 * 3600
    expected = {
        "allocated": 66.70,
        "unallocated.own_queue": 1.27,
        "unallocated.walled": 5.87,
        "unallocated.no_demand": 26.16,
    }
    for path, percent in expected.items():
        assert 100 * tree.amount(path).gpu_s / paid == pytest.approx(percent, abs=0.01), path


# -- Slurm -------------------------------------------------------------------------------------------------


def test_the_ten_jobstats_summaries_and_a_card_without_an_entry_is_unknown(usage: Path) -> None:
    lines = (usage / "jobstats_admincomment_JS1.tsv").read_text().splitlines()[1:]
    assert len(lines) == 10
    for line in lines:
        _, comment, decoded = line.split("\t")
        assert jobstats.decode(comment) == json.loads(decoded)
    records = from_file(usage / "jobstats_admincomment_JS1.tsv")

    means = {(m.node, m.card): m.busy_frac for mine in records.means.values() for m in mine}
    assert means["della-l03g5", 3] is None
    assert means["della-l05g2", 2] is None
    assert means["della-l05g2", 3] == pytest.approx(0.095)
    assert [key[1:] for key in records.activity] == [("g002.curta.zedat.fu-berlin.de", 2)]  # a mean of 0


def test_slurm_json_with_the_wrong_exit_code_goes_by_the_state(usage: Path) -> None:
    records = from_file(usage / "slurm_22.05_sacct_measured_here.json")

    assert {run.job: (run.outcome, run.gpu, run.gpus) for run in records.runs} == {
        "1033": ("kept", "a100", 8),
        "1034": ("lost", "v100", 2),
    }
    assert [part.place for part in records.runs[0].parts] == ["a1", "a2"]
    assert records.left_out["exit_code_contradicts"] == 1


def test_the_same_job_by_sacct_p_has_the_same_outcome(tmp_path: Path) -> None:
    row = (
        "1034|u|lab|low|1794818359|1794818359|1794818359|1794818360|FAILED|3:0|gres/gpu:v100=2,gres/gpu=2|v1"
    )
    names = "JobID|User|Account|Partition|Submit|Eligible|Start|End|State|ExitCode|AllocTRES|NodeList"
    records = from_text(tmp_path, f"{names}\n{row}\n1034.batch{row[4:]}\n")

    assert [(run.outcome, run.gpus, run.gpu) for run in records.runs] == [("lost", 2, "v100")]
    assert records.left_out == {"step": 1}


NAMES = "JobID|Cluster|User|Submit|Eligible|Start|End|State|ExitCode|AllocTRES|NodeList"


def a_row(
    job: str, *, cluster: str = "lab", end: str = "200", state: str = "COMPLETED", code: str = "0:0"
) -> str:
    return f"{job}|{cluster}|u|100|100|120|{end}|{state}|{code}|gres/gpu=2|n1"


def test_a_job_in_two_files_of_one_cluster_counts_once_and_as_it_ended(tmp_path: Path) -> None:
    may, june = tmp_path / "may.txt", tmp_path / "june.txt"
    may.write_text("\n".join([NAMES, a_row("7", end="Unknown", state="RUNNING"), a_row("8")]))
    june.write_text("\n".join([NAMES, a_row("7", end="300"), a_row("8", cluster="other"), a_row("8")]))
    for order in ([may, june], [june, may]):
        records = read([str(path) for path in order], Asked())

        assert sorted((run.job, run.end_s) for run in records.runs) == [("7", 300), ("8", 200), ("8", 200)]
        assert records.left_out == {"counted_once": 2}


def test_json_is_cross_checked_with_sacct_p_and_the_text_counts(usage: Path, tmp_path: Path) -> None:
    told = json.loads((usage / "slurm_22.05_sacct_measured_here.json").read_text())
    job = next(job for job in told["jobs"] if job["job_id"] == 1034)
    times, row = job["time"], tmp_path / "sacct.txt"
    row.write_text(
        "JobID|JobName|User|Partition|Submit|Eligible|Start|End|State|ExitCode|AllocTRES|NodeList\n"
        f"1034|{job['name']}|{job['user']}|{job['partition']}|{times['submission']}|{times['eligible']}|"
        f"{times['start']}|{times['end']}|FAILED|3:0|gres/gpu:v100=2,gres/gpu=2|{job['nodes']}\n"
    )
    both = read([str(row), str(usage / "slurm_22.05_sacct_measured_here.json")], Asked(window=WINDOW))
    alone = read([str(usage / "slurm_22.05_sacct_measured_here.json")], Asked(window=WINDOW))

    assert len(both.runs) == len(alone.runs)
    assert both.left_out["exit_code_wrong"] == 1  # JSON says 0, the text 3
    assert both.left_out["counted_once"] == 1
    assert both.left_out["state_contradicts"] == 0
    assert "exit_code_contradicts" not in both.left_out  # the job that counts has the right one


def test_a_task_of_an_array_is_one_job_in_text_and_json(usage: Path, tmp_path: Path) -> None:
    told = json.loads((usage / "slurm_sacct_slurmdog.json").read_text())
    job = told["jobs"][0]
    job["tres"]["allocated"] = [{"type": "gres", "name": "gpu", "count": 1}]
    found, row = tmp_path / "sacct.json", tmp_path / "sacct.txt"
    found.write_text(json.dumps(told))
    times = job["time"]
    row.write_text(
        "JobID|JobIDRaw|User|Submit|Start|End|State|AllocTRES|NodeList\n"
        f"12078642_6|12079670|{job['user']}|{times['submission']}|{times['start']}|{times['end']}|COMPLETED|"
        "gres/gpu=1|n\n"
    )
    records = read([str(found), str(row)], Asked(window=WINDOW))

    assert [run.job for run in records.runs] == ["12079670"]


def test_a_note_in_a_folder_is_counted_and_a_named_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "README.md").write_text("# Where these came from\n\nAsk Ann.\n")
    (tmp_path / "sacct.txt").write_text(f"{NAMES}\n{a_row('7')}\n")
    records = read([str(tmp_path)], Asked())

    assert (len(records.runs), records.traces, records.left_out) == (1, [], {})
    assert len(records.not_known) == 1
    with pytest.raises(BadInput, match="does not recognize the format"):
        read([str(tmp_path / "README.md")], Asked())


def test_the_folder_of_a_watched_site_is_read_once(tmp_path: Path) -> None:
    jobs = [["7", "ann", 8, 1, "", 0, 0, 3600, ["n1"], "kept", False]]
    nodes = {"n1": ["a100-sxm-80gb", 8, 2_000_000, [[0, 7200]]]}
    facts = {"observed": 2, "looked": [[0, 7200]], "nodes": nodes, "jobs": jobs}
    (tmp_path / "observed.json").write_text(json.dumps(facts))
    (tmp_path / "observed.csv").write_text(
        "job,submit_s,run_s,gpus,tenant,gpu,within\n7,0,3600,8,ann,,node\n"
    )
    (tmp_path / "fleet.toml").write_text('[[nodes]]\ncount = 1\ngpus = 8\ngpu = "a100-sxm-80gb"\n')
    records = read([str(tmp_path)], Asked())

    assert (len(records.runs), records.traces, records.not_known) == (1, [], [])
    assert sweep(records, start_s=0, end_s=7200).tree.amount("allocated.kept").gpu_s == 8 * 3600


def test_all_samples_in_one_folder_are_one_audit(usage: Path) -> None:
    records = read([str(usage)], Asked())
    start_s, end_s = records.window()
    found = sweep(records, start_s=start_s, end_s=end_s)

    assert records.not_known == ["SOURCES_audit.md", "SOURCES_engines.md"]
    assert records.snapshot_gpus > 0
    paid = sum(p.gpus * (p.end_s - p.start_s) for p in records.paid)
    assert sum(found.tree.cells.values()) == found.tree.amount().gpu_s == paid
    assert min(found.tree.cells.values()) >= 0
    # What was lost ran where no source says what was paid.
    assert "lost" not in {job["mostly"] for job in report(records, found)["jobs"]}


def test_published_sums_of_whole_clusters(usage: Path, shared_data: Path) -> None:
    acme = from_file(usage / "acme_cluster_summary.csv.gz")
    tree = sweep(acme, start_s=WINDOW[0], end_s=WINDOW[1]).tree

    assert tree.amount("allocated.kept", team="Seren").gpu_s == 4_560_592_618
    assert tree.amount("allocated.lost", team="Kalos").gpu_s == 426_292_851
    assert acme.left_out == {"summary_without_times": 1}  # PAI
    helios = from_file(shared_data / "traces" / "helios" / "cluster_summary.csv.gz")
    assert (
        sum(gpu_s for leaf, _, gpu_s in helios.totals if leaf == "allocated.kept.unknown") == 39_994_296_320
    )


def test_distributions_over_all_cards_are_told_and_divide_nothing(usage: Path) -> None:
    records = from_file(usage / "acme_utilization_cdfs.csv.gz")

    assert set(records.card_shares) == {"kalos", "kalos_full", "philly", "seren"}
    assert all(0 < idle < 1 and 0 <= starved < 1 for idle, starved in records.card_shares.values())
    assert not records.totals
    assert not records.activity


def test_duty_cycles_of_alibabas_pods(usage: Path) -> None:
    path = str(usage / "alibaba_v2026_genai_pod_gpu_duty_cycle.csv.gz")
    records = read([path], Asked())
    start_s, end_s = records.window()
    tree = sweep(records, start_s=start_s, end_s=end_s).tree

    assert len(records.runs) == 143
    assert tree.amount().gpu_s == sum(run.end_s - run.start_s for run in records.runs)
    idle = tree.amount("allocated.unknown.idle").gpu_s
    active = tree.amount("allocated.unknown.active").gpu_s
    assert idle > 0.5 * (idle + active)  # most of them wait for requests
    assert not records.left_out


def test_memory_that_a_job_held_tells_whether_it_would_have_fit_another_card(
    usage: Path, tmp_path: Path
) -> None:
    lines = (usage / "jobstats_admincomment_JS1.tsv").read_text().splitlines()
    comment = next(line.split("\t")[1] for line in lines if "della-l01g13" in line)
    (tmp_path / "sacct.txt").write_text(
        "JobID|Submit|Eligible|Start|End|AllocTRES|NodeList|AdminComment\n"
        f"1|1000|1000|4600|8200|gres/gpu:h100-sxm-80gb=1|della-l01g13|{comment}\n"
    )
    (tmp_path / "paid.csv").write_text("place,gpu,gpus\nold,a100-sxm-40gb,1\ndella-l01g13,h100-sxm-80gb,1\n")
    records = read([str(tmp_path)], Asked(window=(1000, 8200)))

    assert records.runs[0].parts[0].cards == (1,)
    assert records.waits[0].memory_bytes == 83_314_868_224
    tree = sweep(records, start_s=1000, end_s=4600).tree
    assert tree.amount("unallocated.own_queue").gpu_s == 3600  # its own card is free
    assert not tree.amount("unallocated.other_type").gpu_s
    records.paid = records.paid[:1]
    tree = sweep(records, start_s=1000, end_s=4600).tree
    assert tree.amount("unallocated.other_type.too_small").gpu_s == 3600


def test_sinfo_and_squeue_of_slurm_22_05(usage: Path) -> None:
    nodes = from_file(usage / "slurm_22.05_sinfo_measured_here.json")
    jobs = from_file(usage / "slurm_22.05_squeue_measured_here.json")

    assert {(p.place, p.gpu, p.gpus) for p in nodes.paid} == {
        ("a1", "a100", 8),
        ("a2", "a100", 8),
        ("v1", "v100", 4),
        ("v2", "v100", 4),
    }
    assert [(d.place, d.start_s, d.leaf) for d in nodes.downs] == [
        ("v2", 1794817321, "out_of_service.broken")
    ]
    assert [(w.gpus, w.end_s - w.start_s) for w in jobs.waits] == [(4, 39), (4, 9)]


def test_a_dependent_job_is_not_demand(usage: Path, tmp_path: Path) -> None:
    assert from_file(usage / "slurm_squeue_rivosinc.json").waits == []
    names = "JobID|Partition|Submit|Eligible|Start|End|State|ReqTRES|Reason"
    held = "1|p|2026-05-01T00:00:00|Unknown|Unknown|2026-05-02T00:00:00|CANCELLED|gres/gpu=4|JobHeldUser"
    waits = (
        "2|p|2026-05-01T00:00:00|2026-05-01T06:00:00|Unknown|2026-05-02T00:00:00|CANCELLED|gres/gpu=4|None"
    )
    records = from_text(tmp_path, "\n".join((names, held, waits)))

    assert [w.end_s - w.start_s for w in records.waits] == [18 * 3600]


def test_sinfo_in_text_counts_a_node_once_and_both_its_types(usage: Path) -> None:
    one = from_file(usage / "slurm_25.05_sinfo_gres.txt")
    two = from_file(usage / "slurm_25.11_gres_multitype.txt")

    assert {(p.place, p.gpus) for p in one.paid} == {(f"a00{i}", 4) for i in range(1, 6)}
    assert one.paid[0].walls == {"gpu", "gpu2", "gpu3", "gpu4"}
    assert one.left_out == {"down_since_unknown": 2, "no_gpu_node": 1}
    assert [(p.gpu, p.gpus) for p in two.paid] == [("model_a", 2), ("model_b", 2)]
    assert len(from_file(usage / "slurm_26.05_sinfo_node_detail.txt").paid) == 12


def test_other_samples_of_slurm_are_read_and_what_has_no_gpus_is_counted(usage: Path) -> None:
    left = {
        "slurm_sacct_slurmdog.json": {"no_gpu_job": 1},
        "slurm_sinfo_rivosinc.json": {"no_gpu_node": 4},
        "slurm_sacct_parsable_sckyzo.txt": {"no_header": 12},
        "slurm_26.05_squeue_jobs.txt": {"no_header": 14},
    }
    for name, counted in left.items():
        assert from_file(usage / name).left_out == counted, name
    supercloud = from_file(usage / "mit_supercloud_slurm_gpu_jobs_sample.csv.gz")
    assert len(supercloud.runs) == 2401
    assert {run.outcome for run in supercloud.runs} == {"kept", "lost", "unknown"}


def test_sreport_under_both_headers(usage: Path, tmp_path: Path) -> None:
    records = from_file(usage / "sreport_samples.txt")
    assert [(leaf, gpu_s) for leaf, _, gpu_s in records.totals] == [
        ("allocated.unknown.unknown", 11 * 60),
        ("unallocated.unknown", 49 * 60),
    ]
    assert records.left_out == {"sreport_row": 4}  # CPUs, no unit twice, billing
    old = (
        "Usage reported in TRES Hours\nCluster|TRES Name|Allocated|Down|PLND Down|Idle|Reserved|Reported\n"
        "c1|gres/gpu|8866|800|5|3294|0|12965\n"
    )
    totals = {leaf: gpu_s for leaf, _, gpu_s in from_text(tmp_path, old).totals}
    assert totals["allocated.unknown.unknown"] == 8866 * 3600
    assert totals["out_of_service.broken"] == 800 * 3600
    assert totals["out_of_service.planned"] == 5 * 3600


def test_zeros_of_slurms_own_usage_mean_unsupported(usage: Path, tmp_path: Path) -> None:
    assert from_file(usage / "sacct_tresusage_gpu.txt").means["18194943"][0].busy_frac == 1.0
    records = from_text(tmp_path, "7||\n7.batch|cpu=1,gres/gpumem=0,gres/gpuutil=0|\n")
    assert records.means == {}
    assert records.left_out == {"usage_not_supported": 1}


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("a[1-3,05],b7", ["a1", "a2", "a3", "a05", "b7"]),
        ("n[098-101]-x", ["n098-x", "n099-x", "n100-x", "n101-x"]),
        ("r[1-2]n[1,3],cs75", ["r1n1", "r1n3", "r2n1", "r2n3", "cs75"]),
        ("a" * 100_000 + "[", ["a" * 100_000]),
        ("", []),
    ],
)
def test_node_lists(text: str, names: list[str]) -> None:
    assert slurm.hosts(text) == names


def test_what_has_not_ended_by_sacct_p_goes_on_until_the_last_moment_of_the_file(tmp_path: Path) -> None:
    names = "JobID|User|Partition|Submit|Start|End|State|AllocTRES|ReqTRES|NodeList"
    rows = (
        "1|ann|p|2026-05-01T00:00:00|2026-05-01T00:00:00|2026-05-01T12:00:00|COMPLETED|gres/gpu=4||n1",
        "2|ann|p|2026-05-01T00:00:00|2026-05-01T01:00:00|Unknown|RUNNING|gres/gpu=4||n1",
        "3|ann|p|2026-05-01T03:00:00|Unknown|Unknown|PENDING||gres/gpu=16,node=2|None assigned",
        "4|ann|p|2026-05-01T04:00:00|Unknown|Unknown|PENDING||gres/gpu=16|None assigned",
    )
    records = from_text(tmp_path, "\n".join((names, *rows)) + "\n")

    assert [(run.job, run.end_s - run.start_s) for run in records.runs] == [
        ("1", 12 * 3600),
        ("2", 11 * 3600),
    ]
    waits = [(wait.job, wait.end_s - wait.start_s, wait.per_node) for wait in records.waits]
    assert waits == [("2", 3600, 4), ("3", 9 * 3600, 8), ("4", 8 * 3600, None)]


def test_a_job_in_the_hour_that_comes_twice_ends_after_it_began(tmp_path: Path) -> None:
    path = tmp_path / "sacct.txt"
    row = "1|2026-10-25T02:10:00|2026-10-25T02:50:00|2026-10-25T02:20:00|COMPLETED|gres/gpu=4|n1"
    path.write_text(f"JobID|Submit|Start|End|State|AllocTRES|NodeList\n{row}\n")
    records = read([str(path)], Asked(ZoneInfo("Europe/Paris")))

    assert [run.end_s - run.start_s for run in records.runs] == [1800]


def test_the_expected_start_of_a_waiting_job_is_not_yet(tmp_path: Path) -> None:
    common = {
        "user_name": "ann",
        "partition": "p",
        "tres_req_str": "gres/gpu=8",
        "submit_time": 1_777_593_600,
    }
    jobs = [
        {**common, "job_id": 1, "job_state": "RUNNING", "start_time": 1_777_593_600, "nodes": "n1"},
        {
            **common,
            "job_id": 2,
            "job_state": "PENDING",
            "start_time": 1_777_993_600,
            "eligible_time": 1_777_593_600,
        },
    ]
    jobs[0]["last_sched_evaluation"] = 1_777_597_200
    records = from_text(tmp_path, json.dumps({"jobs": jobs}))

    assert [run.end_s - run.start_s for run in records.runs] == [3600]
    assert [wait.end_s - wait.start_s for wait in records.waits] == [3600]


def test_times_without_a_zone_are_in_the_zone_that_was_named(tmp_path: Path) -> None:
    times = "2026-07-01T00:00:00|2026-07-01T02:00:00|2026-07-01T03:00:00"
    text = f"JobID|Submit|Start|End|AllocTRES\n1|{times}|gres/gpu=1\n"
    utc, paris = from_text(tmp_path, text), from_text(tmp_path, text, "Europe/Paris")

    assert utc.runs[0].start_s - paris.runs[0].start_s == 7200
    assert paris.runs[0].end_s - paris.runs[0].start_s == 3600


# -- samples -----------------------------------------------------------------------------------------------


def test_dcgm_text_with_mig_rows_and_dummies(usage: Path) -> None:
    mig = from_file(usage / "dcgm_mig_4_active_runai.txt")
    assert list(mig.activity) == [("", "nvidia-dcgm-exporter-tl46n", 0)]
    datadog = from_file(usage / "dcgm_t4_datadog.txt")
    assert list(datadog.activity) == [("", "424773df46e0", 0)]
    assert datadog.left_out["sample_without_card"] == 2  # the dummies: SM activity and the engine's
    pods = from_file(usage / "dcgm4_rtx4000_k8s_pod_labels.txt")
    assert [key[0] for key in pods.activity] == ["cuda-75454ffb9f-8ljq7"]
    idle = from_file(usage / "dcgm_8gpu_idle_runai.txt")
    assert {span[2] for spans in idle.activity.values() for span in spans} == {"idle"}


def test_prometheus_range_answers(usage: Path) -> None:
    records = from_file(usage / "prometheus_matrix_dlworkspace_task_gpu_percent.json.gz")
    assert {key[1] for key in records.activity} == {"192.168.0.4", "192.168.0.7"}


class Prometheus(BaseHTTPRequestHandler):
    asked: ClassVar[list[dict[str, list[str]]]] = []

    def do_GET(self) -> None:
        query = parse_qs(urlparse(self.path).query)
        self.asked.append(query)
        start, end = int(query["start"][0]), int(query["end"][0])
        result = []
        if query["query"] == ["DCGM_FI_PROF_SM_ACTIVE"]:
            values = [[at, "0.9"] for at in range(start, end + 1, 60)]
            result = [{"metric": {"Hostname": "n", "gpu": "0"}, "values": values}]
        body = json.dumps({"status": "success", "data": {"resultType": "matrix", "result": result}}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


@pytest.fixture
def prometheus() -> Iterator[str]:
    server = HTTPServer(("127.0.0.1", 0), Prometheus)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    thread.join()
    server.server_close()


def test_straight_from_a_prometheus_server_a_day_at_a_time(prometheus: str) -> None:
    window = (1_790_000_000, 1_790_000_000 + 36 * 3600)
    records = read([prometheus], Asked(UTC, window))

    assert records.activity["", "n", 0] == [(window[0], window[1], "working")]
    days = {(int(q["start"][0]), int(q["end"][0])) for q in Prometheus.asked}
    assert days == {(window[0], window[0] + 86400 - 60), (window[0] + 86400, window[1] - 60)}


def test_a_server_that_is_not_there_is_the_worlds_failure() -> None:
    with pytest.raises(WorldFailed):
        read(["http://127.0.0.1:9"], Asked(UTC, WINDOW))


# -- bad input ---------------------------------------------------------------------------------------------


def test_what_is_not_there_or_not_whole_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotFound):
        read([str(tmp_path / "nothing")], Asked())
    broken = tmp_path / "broken.json"
    broken.write_text('{"jobs": [')
    with pytest.raises(BadInput, match=r"broken\.json"):
        read([str(broken)], Asked())
    (tmp_path / "x.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(BadInput, match=r"x\.parquet"):
        read([str(tmp_path / "x.parquet")], Asked())


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(
                ("time", "start", "state", "tres", "allocated", "gres", "name", "metric", "values", "gpu")
            ),
            inner,
            max_size=4,
        )
    ),
    max_leaves=8,
)


@given(st.sampled_from(("jobs", "nodes", "matrix")), st.lists(JSON, max_size=3))
@settings(max_examples=60)
def test_json_of_any_shape_is_read_or_refused_by_its_name(kind: str, rows: list[object]) -> None:
    found = {"data": {"resultType": "matrix", "result": rows}} if kind == "matrix" else {kind: rows}
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.json"
        path.write_text(json.dumps(found))
        with suppress(BadInput):
            read([str(path)], Asked(window=WINDOW))


@given(st.sampled_from(HEADS), st.lists(st.text("0123456789|,=-:.TZ gpu/[]", max_size=40), max_size=4))
@settings(max_examples=60)
def test_text_of_any_rows_is_read_or_refused(head: str, rows: list[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "any.txt"
        path.write_text("\n".join((head, *rows)))
        with suppress(BadInput):
            read([str(path)], Asked(window=WINDOW))
