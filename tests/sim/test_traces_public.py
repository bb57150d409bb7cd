"""Public trace formats: recognised by content, read as published, refused with the row number."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from brimful.errors import BadInput, NotFound
from brimful.language import count, say
from brimful.sim.traces import reading
from brimful.sim.traces.read import read
from brimful.sim.world import Arrival
from tests.builders import check_reason, refuses

OWN = "job,submit_s,run_s,gpus,gpu_milli,deadline_s\n"
PHILLY = """timestamp,duration,num_gpus,gpu_time,cluster
2017-10-09 07:01:55,66.0,1,66.0,11cb48
2017-10-09 06:13:03,2951.0,8,23608.0,6214e9
"""
PHILLY_LOG = [
    {
        "status": "Pass",
        "vc": "ee9e8c",
        "jobid": "application_1",
        "attempts": [
            {
                "start_time": "2017-10-07 02:00:00",
                "end_time": "2017-10-07 03:00:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m2", "gpus": ["gpu0", "gpu1"]}],
            },
            {
                "start_time": "2017-10-07 04:00:00",
                "end_time": "2017-10-07 04:30:00",
                "detail": [{"ip": "m1", "gpus": ["gpu0", "gpu1"]}, {"ip": "m3", "gpus": ["gpu0", "gpu1"]}],
            },
        ],
        "submitted_time": "2017-10-07 01:11:05",
        "user": "ce2f4c",
    },
    {
        "status": "Killed",
        "vc": "ee9e8c",
        "jobid": "application_2",
        "attempts": [{"start_time": None, "end_time": "None", "detail": []}],
        "submitted_time": "2017-10-07 01:00:00",
        "user": "ce2f4c",
    },
]
GAVEL = (
    "LM (batch size 5)\tpython main.py\tlm\t--steps\t1\t3600\t2\t1\t-1.000000\t0\n"
    "A3C\tpython a3c.py\trl\t--steps\t0\t100\t1\t1\t2.0\t60\n"
)
SPEEDS = {
    "v100": {
        "('LM (batch size 5)', 2)": {"null": 2.0, "('A3C', 1)": [1.0, 1.0]},
        "('A3C', 1)": {"null": 1.0},
    },
    "k80": {"('LM (batch size 5)', 2)": {"null": 0.5}, "('A3C', 1)": {"null": 2.0}},
    "v100_unconsolidated": {"('LM (batch size 5)', 2)": {"null": 1.0}},
}
SIA = """name,time,application,num_replicas,batch_size
cifar10-0,10.5,cifar10,3,512
imagenet-1,20,imagenet,8,1600
"""
SACCT = """JobID|JobName|User|Account|Submit|Elapsed|AllocTRES|State
7|train|ann|vision|2026-01-01T10:00:10|1-02:03:04|billing=8,cpu=64,gres/gpu:a100=8,gres/gpu=8,mem=512G,node=1|OK
7.batch|batch||vision|2026-01-01T10:00:10|1-02:03:04|cpu=64,gres/gpu=8|OK
8|prep|bob|vision|2026-01-01T10:00:00|00:10:00|cpu=4,mem=16G,node=1|OK
9|tune|bob|nlp|2026-01-01T10:00:00|00:10:00|cpu=4,gres/gpu=1,mem=2048M,node=1|OK
10|gone|bob|nlp|2026-01-01T10:00:00|00:00:00|cpu=4,gres/gpu=1,node=1|CANCELLED
"""
NODES = "sn,cpu_milli,memory_mib,gpu,model\nn0,96000,393216,8,G2\nn1,64000,262144,2,P100\n"
PODS = """name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec,qos,pod_phase,creation_time,\
deletion_time,scheduled_time
p0,12000,16384,1,1000,,LS,Running,100,500,110
p1,6000,12288,1,460,P100|G2,BE,Running,0,50,0
p2,8000,30517,0,0,,BE,Failed,20,,
"""


Put = Callable[..., str]


@pytest.fixture
def put(tmp_path: Path) -> Put:
    """Write a file and give its path."""

    def write(text: str, name: str = "trace") -> str:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return str(path)

    return write


def jobs(*sources: str, **more: object) -> dict[str, Arrival]:
    trace, _ = read(list(sources), **more)  # type: ignore[arg-type]
    return {arrival.job.job: arrival for arrival in trace.arrivals}


def test_philly_short_list_is_sorted_and_starts_at_zero(put: Put) -> None:
    found = jobs(put(PHILLY))
    assert [(a.at_s, a.job.gpus, a.work_s, a.job.tenant) for a in found.values()] == [
        (0, 8, 2951.0, "6214e9"),
        (2932, 1, 66.0, "11cb48"),
    ]


def test_philly_job_log_sums_attempts_and_counts_gpus_over_nodes(put: Put) -> None:
    trace, _ = read([put(json.dumps(PHILLY_LOG))])
    (only,) = trace.arrivals
    assert (only.job.job, only.job.gpus, only.work_s, only.at_s) == ("application_1", 4, 5400, 0)
    assert trace.notes == [say("sim.left_out_never_held", jobs=count("job", 1))]


def test_gavel_jobs_have_the_speeds_of_their_table(put: Put) -> None:
    found = jobs(put(GAVEL), put(json.dumps(SPEEDS), "speeds.json"))
    lm, a3c = found["gavel-0"], found["gavel-1"]
    assert lm.work_s == 1800, "3600 steps at 2 steps a second on the reference GPU"
    assert dict(lm.job.rates) == {"v100": 1.0, "k80": 0.25}
    assert lm.job.spread_rate == 0.5
    assert dict(a3c.job.rates)["k80"] == 2.0, "some jobs are faster on the older GPU"
    assert (a3c.at_s, a3c.job.deadline_s) == (60, 260)


def test_a_gavel_trace_alone_asks_for_its_speeds(put: Put) -> None:
    with refuses(BadInput, "sim.gavel_without_throughputs") as caught:
        read([put(GAVEL)])
    assert "simulation_throughputs.json" in caught.value.hint


def test_sia_jobs_say_what_is_assumed(put: Put) -> None:
    trace, _ = read([put(SIA)])
    assert [(a.job.name, a.job.gpus, a.at_s) for a in trace.arrivals] == [
        ("cifar10", 3, 10),
        ("imagenet", 8, 20),
    ]
    assert trace.arrivals[1].work_s * 8 == pytest.approx(316 * 3600)
    assert trace.notes == [say("sim.sia_no_run_times")]


def test_one_of_several_sia_workloads_is_chosen_by_name(put: Put) -> None:
    rows = [f"{w},{row}" for w in ("a/1", "a/2") for row in SIA.splitlines()[1:]]
    path = put("\n".join([f"workload,{SIA.splitlines()[0]}", *rows]))
    assert len(jobs(f"{path}?workload=a/2")) == 2
    with refuses(BadInput, "sim.several_workloads", "row 4"):
        read([path])
    with refuses(BadInput, "sim.option_unknown", "wokload"):
        read([f"{path}?wokload=a/2"])


def test_sacct_keeps_jobs_with_gpus_and_counts_the_rest(put: Put) -> None:
    path = put(SACCT)
    trace, _ = read([path])
    nine, seven = trace.arrivals
    assert (seven.job.job, seven.job.gpus, seven.job.gpu_types, seven.at_s) == ("7", 8, ("a100",), 10)
    assert seven.work_s == 26 * 3600 + 3 * 60 + 4
    assert (seven.job.cpu_milli, seven.job.memory_mib, seven.job.tenant) == (64_000, 512 * 1024, "vision")
    assert (nine.job.memory_mib, nine.job.gpu_types, nine.at_s) == (2048, (), 0)
    assert seven.job.within == "node"
    assert trace.notes == [
        say("sim.left_out_step", left=count("step", 1)),
        say("sim.left_out_no_gpus", left=count("job", 1)),
        say("sim.left_out_never_ran", left=count("job", 1)),
    ]
    assert jobs(f"{path}?types=any")["7"].job.gpu_types == ()


def test_openb_nodes_and_pods_come_together(put: Put) -> None:
    trace, _ = read([put(PODS, "pods"), put(NODES, "nodes")])
    assert [(n.node, n.gpu, n.gpus, n.cpu_milli) for n in trace.nodes] == [
        ("n0", "G2", 8, 96000),
        ("n1", "P100", 2, 64000),
    ]
    found = {a.job.job: a for a in trace.arrivals}
    assert list(found) == ["p1", "p2", "p0"], "in order of creation"
    assert (found["p0"].work_s, found["p1"].job.gpu_milli, found["p1"].job.gpu_types) == (
        390,
        460,
        ("P100", "G2"),
    )
    assert (found["p2"].job.gpus, found["p2"].work_s) == (0, 0)


def test_gzip_is_opened_by_its_content_not_its_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_bytes(gzip.compress(PHILLY.encode()))
    assert len(jobs(str(path))) == 2


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        (PHILLY.replace("66.0,1,", "-66.0,1,"), ("sim.bad_entry", "row 2", "duration", "-66.0")),
        (PHILLY.replace("66.0,1,", "66.0,0,"), ("sim.bad_entry", "row 2", "num_gpus", "0")),
        (
            PHILLY.replace("2017-10-09 06:13:03", "yesterday"),
            ("sim.bad_entry", "row 3", "timestamp", "yesterday"),
        ),
        (SIA.replace("imagenet,8", "imagenet,0"), ("sim.bad_entry", "row 3", "num_replicas", "0")),
        (SIA.replace("imagenet,8", "llama,8"), ("sim.application_unknown", "row 3", "llama")),
        (SIA.replace("20,imagenet", "2,imagenet"), ("sim.not_in_order", "row 3", 2, 10)),
        (SIA.replace("imagenet-1", "cifar10-0"), ("sim.duplicate_job", "row 3", "cifar10-0")),
        (SACCT.replace("1-02:03:04|billing", "soon|billing"), ("sim.bad_elapsed", "row 2", "soon")),
        (SACCT.replace("gres/gpu=1,mem", "gres/gpu=-1,mem"), ("sim.bad_entry", "row 5", "gres/gpu", "-1")),
        (PODS.replace("1,460", "3,460"), ("sim.shared_gpus", "row 3", 3, 460)),
        (PODS.replace("500,110", "100,110"), ("sim.deleted_before_scheduled", "row 2", "10")),
        (PODS.replace("p1,", "p0,"), ("sim.duplicate_job", "row 3", "p0")),
        (NODES.replace("n1", "n0"), ("sim.duplicate_node", "row 3", "n0")),
        (
            "timestamp,num_gpus\n2017-10-09 07:01:55,1\n",
            ("sim.no_column", "duration", "'timestamp, num_gpus'"),
        ),
        ("", ("sim.empty",)),
        ("\ufeff\n", ("sim.empty",)),
        ("hello\nworld\n", ("sim.no_column", "job, submit_s, run_s, gpus", "'hello'")),
        ("[]", ("sim.json_unknown",)),
        (OWN, ("sim.no_jobs",)),
        (OWN.replace("gpus", "gpus,gpus"), ("sim.duplicate_column", "gpus")),
        (OWN.replace(",", ";"), ("sim.no_column", "'job;submit_s;run_s;gpus;gpu_milli;deadline_s'")),
        (OWN.replace("\n", "\r") + "a,0,1,1\r", ("sim.lone_carriage_return", "row 1")),
        (OWN + "a,0,1,1,,,\n", ("sim.too_many_fields", "row 2", 7, 6)),
        (OWN + "a,0,1\n", ("sim.bad_entry.empty", "row 2", "gpus")),
        (OWN + 'a,0,1,1,,\n"b,1,1,1,,\nc,2,1,1,,\n', ("sim.quote_not_closed", "row 3")),
        (OWN + "a,1_0,1,1,,\n", ("sim.bad_entry", "row 2", "submit_s", "1_0")),
        (OWN + "a,0,1,2,500,\n", ("sim.shared_gpus", "row 2", 2, 500)),
        (OWN + "a,100,1,1,,50\n", ("sim.deadline_before_submit", "row 2", 50, 100)),
        (OWN + "a\0,0,1,1,,\n", ("sim.bad_entry", "row 2", "job", "a\0")),
        (PHILLY.replace("2017-10-09 06:13:03", "9999-10-09 06:13:03"), ("sim.too_late", "row 2")),
        ("JobID|Submit|ElapsedRaw\n1|2026-01-01T00:00:00|5\n", ("sim.no_column_of", "AllocTRES or ReqTRES")),
        ("JobID   Submit\n-----   ------\n", ("sim.sacct_in_columns",)),
        ("JobID|Submit|ElapsedRaw|AllocTRES\n1|²|5|gres/gpu=1\n", ("sim.bad_entry", "row 2", "Submit", "²")),
        (
            "JobID|Submit|ElapsedRaw|AllocTRES\n1|2026-01-01T00:00:00|5|cpu=1\n",
            ("sim.no_gpu_jobs",),
        ),
        (json.dumps([{**PHILLY_LOG[0], "attempts": 3}]), ("sim.no_attempts", "job 1")),
        ('[{"submitted_time": 1, "attempts": ', ("sim.not_json",)),
    ],
)
def test_a_bad_row_is_named(text: str, reason: tuple[str, ...], put: Put) -> None:
    with refuses(BadInput, *reason) as caught:
        read([put(text)])
    assert caught.value.hint


def test_lenient_reading_counts_bad_rows_and_keeps_the_good(put: Put) -> None:
    text = SIA + "bert-2,15,bert,4,64\ncifar10-0,30,cifar10,1,1\nx,40,bert,-4,64\n"
    trace, skips = read([put(text)], lenient=True)
    assert [a.at_s for a in trace.arrivals] == [10, 15, 20], "the late row is kept, in its place"
    assert (skips.count, skips.reordered) == (2, 1)
    check_reason(skips.first[1].as_dict(), "sim.bad_entry", "row 6", "num_replicas", "-4")


def test_where_nothing_can_be_used_lenient_reading_says_so(put: Put) -> None:
    with refuses(BadInput, "sim.no_usable_row", 1):
        read([put("job,submit_s,run_s,gpus\na,0,1,0\n")], lenient=True)


def test_a_zone_counts_where_a_time_names_one(put: Put) -> None:
    text = "timestamp,duration,num_gpus\n2017-10-09 02:00:00+02:00,1,1\n2017-10-09T00:00:30Z,1,1\n"
    trace, _ = read([put(text)])
    assert [arrival.at_s for arrival in trace.arrivals] == [0, 30]


def test_a_quote_in_a_slurm_job_name_is_a_letter(put: Put) -> None:
    text = 'JobID|JobName|Submit|ElapsedRaw|AllocTRES\n1|"my job|2026-01-01T00:00:00|100|gres/gpu=1\n'
    trace, _ = read([put(text)])
    assert trace.arrivals[0].job.name == '"my job'


def test_numbers_as_tables_spell_them_and_columns_nobody_knows(put: Put) -> None:
    trace, _ = read([put("job,submit_s,run_s,gpus,priorty\r\na,0.0,10,8.0,urgent\r\n")])
    assert (trace.arrivals[0].job.gpus, trace.arrivals[0].at_s) == (8, 0)
    assert trace.notes == [say("sim.columns_not_used", columns="priorty")]


def test_a_gpu_the_fleet_does_not_have_is_named_with_its_row(put: Put) -> None:
    with refuses(BadInput, "sim.gpu_type_not_in_fleet", "row 2", "a100", "h100, v100"):
        read([put(SACCT)], gpu_types=["v100", "h100"])
    _, skips = read([put(SACCT)], gpu_types=["v100"], lenient=True)
    assert skips.count == 1
    with refuses(BadInput, "sim.gpu_type_not_in_fleet", "row 1", "k80 or v100", "t4"):
        read([put(GAVEL), put(json.dumps(SPEEDS), "s")], gpu_types=["t4"])


def test_a_file_that_unpacks_without_end_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "MAX_UNPACKED_BYTES", 100_000)
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(b"timestamp,duration,num_gpus\n" + b"0\n" * 1_000_000))
    with refuses(BadInput, "sim.unpacks_too_large", 100_000):
        read([str(path)], lenient=True)
    path.write_bytes(gzip.compress(b"timestamp,duration,num_gpus\n" + b"0" * 3_000_000))
    with refuses(BadInput, "sim.row_too_long", 2, 1_048_576):
        read([str(path)], lenient=True)


def test_a_torn_gzip_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "torn.gz"
    path.write_bytes(gzip.compress(PHILLY.encode() * 1000)[:-40])
    with pytest.raises(BadInput):
        read([str(path)])
    with pytest.raises(NotFound):
        read([str(tmp_path / "none")])


def test_made_up_jobs_have_the_published_shape_and_the_asked_load() -> None:
    trace, _ = read(["synthetic:philly?jobs=20000&gpus=512&load=0.8&seed=3"])
    sizes = [a.job.gpus for a in trace.arrivals]
    assert sizes.count(1) / len(sizes) == pytest.approx(0.93, abs=0.01)
    times = sorted(a.work_s for a in trace.arrivals)
    assert times[10_000] == pytest.approx(1144, rel=0.1), "the published median"
    asked = sum(a.job.gpus * a.work_s for a in trace.arrivals)
    assert asked / trace.arrivals[-1].at_s / 512 == pytest.approx(0.8, rel=0.02)
    hours = [a.at_s // 3600 % 24 for a in trace.arrivals]
    assert hours.count(16) > 4 * hours.count(5)
    assert trace == read(["synthetic:philly?jobs=20000&gpus=512&load=0.8&seed=3"])[0]
    assert trace != read(["synthetic:philly?jobs=20000&gpus=512&load=0.8&seed=4"])[0]


@pytest.mark.parametrize("source", ["synthetic:mars", "synthetic:philly?jobs=0", "synthetic:philly?job=1"])
def test_jobs_that_cannot_be_made_up_are_refused(source: str) -> None:
    with pytest.raises(BadInput):
        read([source])


@pytest.mark.parametrize(
    ("files", "count", "gpu_hours"),
    [
        (["philly/philly_jobs.csv.gz"], 82_247, 978_078),
        (
            ["gavel/physical_cluster/max_min_fairness.trace.gz", "gavel/simulation_throughputs.json.gz"],
            96,
            393,
        ),
        (["openb/openb_node_list_gpu_node.csv.gz", "openb/openb_pod_list_default.csv.gz"], 8_152, 59_612),
        (["openb/openb_node_list_gpu_node.csv.gz", "openb/openb_pod_list_multigpu20.csv.gz"], 8_324, 0),
        (["sia/sia_workloads.csv.gz?workload=saturn/workload-1"], 160, 1_263),
    ],
)
def test_the_real_files_are_read_whole(
    shared_data: Path, files: list[str], count: int, gpu_hours: float
) -> None:
    trace, skips = read([str(shared_data / "traces" / name) for name in files])
    assert (len(trace.arrivals), skips.count) == (count, 0)
    hours = sum(a.job.gpus * a.work_s for a in trace.arrivals) / 3600
    assert hours == pytest.approx(gpu_hours, rel=0.01)
