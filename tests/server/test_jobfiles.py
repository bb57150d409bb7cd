"""Job files: brimful's own, SkyPilot's, Slurm's; what they mean, and what is refused with a name."""

from __future__ import annotations

import json
import os
import subprocess
import time
from dataclasses import replace
from datetime import datetime
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from brimful.adapters.engines.devices import catalog_names
from brimful.client.shown import command_line
from brimful.errors import BadInput, BrimfulError, NotFound, WorldFailed
from brimful.language.printable import all_printable
from brimful.server.api.requests import Submission
from brimful.server.api.verbs import submission_of
from brimful.server.jobfiles import own
from brimful.server.jobfiles.jobfile import JobFile, read_job_file
from brimful.server.jobfiles.own import FIELDS, schema
from brimful.server.jobfiles.sbatch import minutes_of
from tests.builders import check_reason, refuses
from tests.server.builders import OPERATOR

A100 = ["a100", "a100-sxm-40gb", "a100-sxm-80gb", "a100-pcie-40gb", "a100-pcie-80gb"]  # any of them will do
EXAMPLES = Path(__file__).parents[2] / "examples" / "jobs"


def read(tmp_path: Path, text: str, name: str = "brimful.yaml") -> JobFile:
    path = tmp_path / name
    path.write_text(text)
    return read_job_file(path)


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_the_examples_are_submissions(path: Path) -> None:
    file = read_job_file(path)
    job = Submission(**file.body).as_job(OPERATOR, "")
    assert job.gpus == 1
    assert not file.unsupported


def test_every_field_of_the_format_has_a_reader_and_means_something(tmp_path: Path) -> None:
    by_hand = {name for name, field in FIELDS.items() if not field.target}
    assert by_hand == {"folder", "fit", "steps", "env_from"}
    file = read(
        tmp_path,
        """
command: [python, train.py]
name: n
gpus: 4
gpu: [H100, a100]
within: rack
sites: west
tenant: vision
queue: q
priority: urgent
budget: 12.5
max_price: "2.10"
array: 0-99%4
after: [job-1, "job-2:any"]
tier: spot
deadline: 2026-12-01T18:00+00:00
deferrable: true
max_run: 4h
retries: 2
cpus: 8
memory: 16GiB
env: {A: 1, B: true}
checkpoint_every: 10m
restart_takes: 30s
fit: config.py
steps: 100
env_from: [HOME]
""",
    )
    assert file.body == {
        "folder": str(tmp_path),
        "command": ["python", "train.py"],
        "name": "n",
        "gpus": 4,
        "gpu_types": ["h100-sxm-80gb", *A100],
        "within": "rack",
        "sites": ["west"],
        "tenant": "vision",
        "queue": "q",
        "priority": "urgent",
        "budget_microusd": 12_500_000,
        "limit_microusd_per_gpu_hour": 2_100_000,
        "array": "0-99%4",
        "after": ["job-1:ok", "job-2:any"],
        "tiers": ["spot"],
        "deadline_s": 1_796_148_000,
        "deferrable": True,
        "max_run_s": 14_400,
        "retries": 2,
        "cpus": 8,
        "memory_mib": 16_384,
        "env": {"A": "1", "B": "true"},
        "checkpoint_interval_s": 600,
        "checkpoint_cost_s": 30,
    }
    assert (file.fit, file.steps, file.env_from) == (str(tmp_path / "config.py"), 100, ["HOME"])
    assert Submission(**file.body).as_job(OPERATOR, "").budget_microusd == 12_500_000


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("gpus: 1", "jobfile.no_command"),
        ("command: ~", "jobfile.no_command"),
        ("command: ''", "jobfile.cannot_be command"),
        ("command: ' '", "jobfile.cannot_be command"),
        ("command: []", "jobfile.cannot_be command"),
        ("command: ['', x]", "jobfile.cannot_be command"),
        ('command: x\nfolder: "a\\0b"', "jobfile.cannot_be folder"),
        ('command: x\nfit: "a\\0b"', "jobfile.cannot_be fit"),
        ('run: x\nworkdir: "a\\0b"', "jobfile.cannot_be workdir"),
        ("command: x\ngpu_count: 4", "jobfile.unknown_fields 'gpu_count'"),
        ("command: x\nbudjet: 4", "jobfile.unknown_fields 'budjet'"),
        ("command: x\ngpus: many", "jobfile.cannot_be gpus"),
        ("command: x\ngpus: 0", "jobfile.cannot_be gpus"),
        ("command: x\ngpus: true", "jobfile.cannot_be gpus"),
        ("command: x\npriority: now", "jobfile.cannot_be priority now"),
        ("command: x\nbudget: free", "jobfile.not_a_price budget free"),
        ("command: x\nmax_run: soon", "jobfile.not_a_time max_run soon"),
        ("command: x\ndeadline: tomorrow", "jobfile.not_a_deadline deadline tomorrow"),
        ("command: x\nenv:\n  command: y\n  gpus: 8\ngpu_count: 4", "jobfile.unknown_fields 'gpu_count'"),
        ("command: x\ncommand: y", "configs.duplicate_key command"),
        ("command: x\nenv: {A: 1, A: 2}", "configs.duplicate_key A"),
        ("a: &a [x]\ncommand: *a", "configs.aliases_refused"),
        ("command: *a", "configs.aliases_refused"),
        ("command: !!python/object/apply:os.system [touch PWNED]", "configs.tags_refused"),
        ("command: x\nenv: !!python/object/apply:os.system [touch PWNED]", "configs.tags_refused"),
        ("- command", "configs.not_a_mapping"),
        ("command: [x", "configs.line_not_yaml 1"),
        ("command:\n\tx", "configs.line_not_yaml 2"),
        ("{{{{", "configs.key_not_plain_text"),
        ("command: x\n---\ncommand: y", "configs.second_document"),
        ("command: " + "[" * 100_000, "configs.yaml_nested_too_deeply"),
        ("env:\n" + "".join(f"  A{n}: 1\n" for n in range(9_000)), "configs.too_many_values 10000"),
        ("command: x\nname: \x07", "configs.line_control_character 2"),
        ("command: x\0", "configs.binary_file"),
        ("", "jobfile.no_command"),
    ],
)
def test_what_a_job_file_cannot_say_is_one_clear_error(tmp_path: Path, text: str, reason: str) -> None:
    with pytest.raises(BadInput) as caught:
        read(tmp_path, text)
    told, (code, *values) = caught.value.said.as_dict(), reason.split()
    check_reason(told["what"] if told["code"] == "configs.line_says" else told, code, *values)
    assert [file.name for file in tmp_path.iterdir()] == ["brimful.yaml"]  # nothing ran


def test_values_that_yaml_1_1_would_change_reach_the_job_as_they_were_written(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
command: x
name: 2026-12-01
deadline: 2026-12-01T18:00:00Z
env:
  LR: 1e-4
  PYTHON: 3.10
  START: 12:30
  CODE: 010
  on: off
""",
    )

    assert file.body["env"] == {
        "LR": "1e-4",
        "PYTHON": "3.10",
        "START": "12:30",
        "CODE": "010",
        "on": "false",
    }
    assert (file.body["name"], file.body["deadline_s"]) == ("2026-12-01", 1_796_148_000)
    assert Submission(**file.body).as_job(OPERATOR, "").gpus == 1
    with refuses(BadInput, "jobfile.not_a_time", "max_run", "12:30"):  # minutes or hours?
        read(tmp_path, "command: x\nmax_run: 12:30\n")


def test_a_line_of_text_inside_a_script_is_not_a_field(tmp_path: Path) -> None:
    file = read(tmp_path, "command: |\n  cat <<END\n  gpus: 64\n  END\ngpus: 2\n")

    assert file.body["gpus"] == 2
    assert file.body["command"][-1] == "cat <<END\ngpus: 64\nEND\n"


def test_a_mark_at_the_front_and_line_ends_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "brimful.yaml"
    path.write_bytes(b"\xef\xbb\xbfcommand: |\r\n  true\r\n  false\r\ngpus: 2\r\n")

    assert read_job_file(path).body["command"] == ["sh", "-c", "true\nfalse\n"]
    path.write_bytes("command: é".encode("latin-1"))
    with refuses(BadInput, "configs.line_not_utf8", 1):
        read_job_file(path)


def test_a_pipe_will_do_and_a_device_will_not() -> None:
    script = "#!/bin/sh\n#SBATCH --gpus=1\ntrue\n"
    reading, writing = os.pipe()
    with os.fdopen(writing, "w") as pipe:
        pipe.write(script)
    try:
        assert read_job_file(Path(f"/dev/fd/{reading}")).body["gpus"] == 1
    finally:
        os.close(reading)
    with refuses(BadInput, "jobfile.cannot_read", {"code": "language.os_enxio"}):
        read_job_file(Path("/dev/zero"))


def test_a_pipe_is_read_no_further_than_a_job_file_is_long() -> None:
    with subprocess.Popen(["yes"], stdout=subprocess.PIPE) as endless:
        assert endless.stdout is not None
        with refuses(BadInput, "jobfile.too_large"):
            read_job_file(Path(f"/dev/fd/{endless.stdout.fileno()}"))
        endless.stdout.close()
        endless.kill()


def test_a_huge_file_is_refused_before_it_is_read(tmp_path: Path) -> None:
    with refuses(BadInput, "jobfile.too_large", 10 << 20) as caught:
        read(tmp_path, "#" * (10 << 20))
    assert caught.value.code == "too_large"
    with pytest.raises(NotFound):
        read_job_file(tmp_path / "none.yaml")


def test_a_script_without_directives_is_not_taken_for_a_job_file(tmp_path: Path) -> None:
    with refuses(BadInput, "jobfile.unknown_kind") as caught:
        read(tmp_path, "#!/bin/sh\ntrue\n", "run.sh")
    assert "brimful submit -- sh" in caught.value.hint


def test_json_is_read_without_a_library(tmp_path: Path) -> None:
    file = read(tmp_path, json.dumps({"command": ["true"], "gpus": 2}), "job.json")
    assert file.body["gpus"] == 2


def test_the_schema_is_the_table() -> None:
    assert set(schema()["properties"]) == set(FIELDS)


def test_a_skypilot_task_is_understood_and_the_rest_is_named(tmp_path: Path) -> None:
    file = read(
        tmp_path,
        """
name: ft
workdir: src
num_nodes: 2
resources:
  accelerators: H100:8
  cpus: 16+
  memory: 64
  use_spot: true
  infra: aws/us-east-1
file_mounts: {/data: s3://x}
envs: {LR: 0.1}
setup: pip list
run: torchrun train.py
something_new: 1
""",
        "task.yaml",
    )
    body = file.body
    assert (file.kind, body["gpus"], body["within"], body["cpus"]) == ("skypilot", 16, "site", 32)
    assert body["memory_mib"] == 2 * 64 * 1024
    assert body["command"] == ["bash", "-c", "set -e\npip list\ntorchrun train.py"]
    assert (body["env"], body["tiers"]) == ({"LR": "0.1"}, ["spot"])
    assert {name: why.code for name, why in file.unsupported.items()} == {
        "file_mounts": "jobfile.sky_file_mounts",
        "something_new": "jobfile.no_field",
        "resources.infra": "jobfile.sky_place",
    }


@pytest.mark.parametrize(
    ("resources", "gpus", "types"),
    [
        ("A100:4", 4, ["A100"]),
        ("{A100: 4, H100: 4}", 4, ["A100", "H100"]),
        ("[L4:2, T4:2]", 2, ["L4", "T4"]),
        ("V100", 1, ["V100"]),
    ],
)
def test_accelerators_in_each_of_their_forms(
    tmp_path: Path, resources: str, gpus: int, types: list[str]
) -> None:
    file = read(tmp_path, f"resources: {{accelerators: {resources}}}\nrun: x", "task.yaml")
    assert (file.body["gpus"], file.body["gpu_types"]) == (gpus, catalog_names(types))


FIRM = ["owned", "reserved", "on_demand"]


@pytest.mark.parametrize(
    ("resources", "types", "tiers", "notes"),
    [
        ("{any_of: [{accelerators: A100:2}, {accelerators: H100:2}]}", ["A100", "H100"], [], []),
        (
            "{use_spot: false, any_of: [{accelerators: A100:2}]}",
            ["A100"],
            ["owned", "reserved", "on_demand"],
            [],
        ),
        ("{accelerators: A100:2, any_of: [{use_spot: true}, {use_spot: false}]}", ["A100"], [], []),
        (
            "{any_of: [{accelerators: A100:2, use_spot: true}, {accelerators: H100:2}]}",
            ["A100", "H100"],
            [],
            ["jobfile.sky_any_pair"],
        ),
    ],
)
def test_what_a_skypilot_task_may_choose_from(
    tmp_path: Path, resources: str, types: list[str], tiers: list[str], notes: list[str]
) -> None:
    file = read(tmp_path, f"resources: {resources}\nrun: x", "task.yaml")
    assert (file.body["gpus"], file.body["gpu_types"]) == (2, catalog_names(types))
    assert (file.body["tiers"], file.unsupported) == (tiers, {})
    assert [note.code for note in file.notes] == notes
    assert Submission(**file.body).as_job(OPERATOR, "").tiers == tuple(tiers)


def test_choices_that_cannot_be_one_job_are_refused(tmp_path: Path) -> None:
    for resources, code in (
        ("{any_of: [{accelerators: A100:2}, {accelerators: H100:4}]}", "jobfile.accelerators_differ"),
        ("{any_of: A100}", "jobfile.any_of_no_list"),
        ("{any_of: []}", "jobfile.any_of_no_list"),
        ("{use_spot: maybe}", "jobfile.cannot_be"),
    ):
        with refuses(BadInput, code):
            read(tmp_path, f"resources: {resources}\nrun: x", "task.yaml")
    file = read(tmp_path, "resources: {any_of: [{accelerators: A100:1, ports: 80}]}\nrun: x", "task.yaml")
    assert list(file.unsupported) == ["resources.ports"]


@pytest.mark.parametrize(
    ("given", "after"),
    [
        ("afterok:job-7", ["job-7:ok"]),
        ("afterok:job-7:job-8,afterany:job-9", ["job-7:ok", "job-8:ok", "job-9:any"]),
        ("afternotok:job-7", None),
        ("singleton", None),
        ("afterok:123", None),  # a number of Slurm's own
        ("afterok:", None),
    ],
)
def test_dependencies_of_a_batch_script(tmp_path: Path, given: str, after: list[str] | None) -> None:
    text = f"#!/bin/sh\n#SBATCH --gpus=1 --dependency={given}\n"
    if after is not None:
        assert read(tmp_path, text, "x.sbatch").body["after"] == after
        return
    with pytest.raises(BadInput):
        read(tmp_path, text, "x.sbatch")


SBATCH = """#!/bin/bash -l
#SBATCH -J train -N 2
#SBATCH --gres=gpu:a100:4,nvme:1
#SBATCH --ntasks=4 --cpus-per-task 3
#SBATCH --mem=32G
#SBATCH -t 1-02:30:00
#SBATCH --account=vision --partition=big
#SBATCH --array=1-4
#SBATCH --mail-type=END
#SBATCH --requeue
echo hi
#SBATCH --gpus=99
srun python train.py
"""


def test_a_batch_script_is_understood_and_the_rest_is_named(tmp_path: Path) -> None:
    file = read(tmp_path, SBATCH, "train.sbatch")
    body: dict[str, Any] = file.body
    assert (body["name"], body["gpus"], body["within"], body["cpus"]) == ("train", 8, "site", 12)
    assert (body["tenant"], body["queue"], body["retries"]) == ("vision", "big", 1)
    assert body["max_run_s"] == 86400 + 2 * 3600 + 30 * 60
    assert body["memory_mib"] == 2 * 32 * 1024
    assert body["command"] == ["/bin/bash", "-l", "-c", SBATCH, "train.sbatch"]
    assert set(file.unsupported) == {"--gres=nvme:1"}
    assert file.body["array"] == "1-4"
    assert len(file.notes) == 2


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30", 1800), ("10:30", 630), ("1:00:00", 3600), ("2-0", 172800), ("1-1:1", 90060), ("1-0:0:1", 86401)],
)
def test_slurms_times(text: str, seconds: int) -> None:
    assert minutes_of(text, "--time") == seconds


@pytest.mark.parametrize(
    "line",
    [
        "--gpus=x",
        "--gpus=0",
        "--time=soon --gpus=1",
        "--time=² --gpus=1",
        "-N zero --gpus=1",
        "'open",
        "word",
        "--mem=x --gpus=1",
    ],
)
def test_a_directive_that_makes_no_sense_is_one_clear_error(tmp_path: Path, line: str) -> None:
    with pytest.raises(BrimfulError):
        read(tmp_path, f"#!/bin/sh\n#SBATCH {line}\ntrue\n", "x.sbatch")


def test_a_submission_checks_what_a_file_may_have_let_through() -> None:
    with pytest.raises(ValidationError):
        Submission(command=("x",), folder="/", gpus=10**9)


@pytest.mark.parametrize(
    ("command", "shown"),
    [
        (["python", "train.py", "--steps", "2"], "python train.py --steps 2"),
        (["sh", "-c", "python train.py"], "sh -c python train.py"),
        (["bash", "-c", "cd a\n\n# then\npython train.py\nls\n"], "cd a … and 2 more lines"),
        (
            ["/bin/bash", "-l", "-c", "#!/bin/bash -l\n#SBATCH --gpus=1\nsrun x\n", "a.sbatch"],
            "a.sbatch: srun x",
        ),
        (["sh", "-c", "# nothing\n#\n", "a.sh"], "a.sh: nothing"),
        (["gcc", "-c", "a\nb"], "gcc -c a\N{REPLACEMENT CHARACTER}b"),
        (["sh", "-c"], "sh -c"),
        (["sh", "-c", "python train.py\n"], "sh -c python train.py"),
    ],
)
def test_a_command_is_shown_in_one_line(command: list[str], shown: str) -> None:
    assert command_line(command) == shown
    assert command_line(all_printable(command)) == shown  # an answer's line ends are marked


def test_a_path_that_can_be_no_job_file_is_bad_input(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    (tmp_path / "loop.yaml").symlink_to(tmp_path / "loop.yaml")
    for path in (tmp_path, tmp_path / "file" / "x.yaml", tmp_path / "loop.yaml"):
        with refuses(BadInput, "jobfile.cannot_read", path):
            read_job_file(path)
    with refuses(NotFound, "jobfile.no_file", tmp_path / "none.yaml"):
        read_job_file(tmp_path / "none.yaml")
    with refuses(WorldFailed, "jobfile.cannot_read"):  # it is there and cannot be read
        read_job_file(Path("/proc/self/mem"))


@pytest.mark.parametrize(
    ("said", "now", "then"),
    [
        ("Fri 09:00", "2026-11-17T12:00", "2026-11-20T09:00"),
        ("tuesday 11:59", "2026-11-17T12:00", "2026-11-24T11:59"),
        ("Sun 09:00", "2026-10-24T12:00", "2026-10-25T09:00"),  # the clocks change in that night
        ("Sun 09:00", "2026-03-28T12:00", "2026-03-29T09:00"),
    ],
)
def test_a_weekday_is_the_next_one_by_the_readers_clock(
    said: str, now: str, then: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TZ", "Europe/Berlin")
    time.tzset()
    try:
        day = own._DAY.fullmatch(said)
        assert day is not None
        found = own._next(day, datetime.fromisoformat(now).astimezone())
        assert (
            datetime.fromtimestamp(found, tz=ZoneInfo("Europe/Berlin")).isoformat(timespec="minutes")[:16]
            == then
        )
    finally:
        monkeypatch.undo()
        time.tzset()


def test_a_range_of_gpus_is_an_elastic_gang_with_its_curve(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("command: x\ngpus: 2..16\nscaling: 4:1.9,16:6\n")
    body = read_job_file(tmp_path / "job.yaml").body
    job = Submission(**body).as_job(OPERATOR, "")
    assert (job.gpus, job.min_gpus, job.max_gpus) == (2, 2, 16)
    assert job.curves == (("", ((2, 1.0), (4, 1.9), (16, 6.0))),)


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"gpus": "16..2"}, "fleet.not_a_range"),
        ({"gpus": "3..16"}, "fleet.range_not_divisible"),
        ({"gpus": "2..16", "deadline_s": 10**10}, "server.elastic_deadline"),
        ({"gpus": 2, "scaling": {4: 2.0}}, "fleet.scaling_without_range"),
        ({"gpus": "2..16", "scaling": {4: 2.0, 8: 1.5}}, "fleet.bad_scaling"),
        ({"gpus": "2..16", "scaling": {32: 2.0}}, "fleet.bad_scaling"),
    ],
)
def test_a_range_that_cannot_be_is_refused_at_submit(body: dict[str, object], code: str) -> None:
    with refuses(BadInput, code):
        Submission(command=("x",), folder="/", **body).as_job(OPERATOR, "")  # type: ignore[arg-type]


def test_the_same_job_again_asks_for_the_same_range() -> None:
    asked = Submission(command=("x",), folder="/", gpus="2..16", scaling={4: 1.5})
    job = replace(asked.as_job(OPERATOR, ""), gpus=8)
    again = Submission.model_validate(submission_of(job, now_s=0))
    assert again.as_job(OPERATOR, "") == replace(job, gpus=2)
