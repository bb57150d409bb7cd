"""Fill-only rehearsal: the published allocation rates come out, and no GPU is given away twice."""

from __future__ import annotations

import csv
import gzip
from dataclasses import replace
from pathlib import Path
from statistics import fmean

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.cli.operate.simulate import FILL_POLICIES
from brimful.errors import BadInput
from brimful.fleet.job import Job
from brimful.fleet.node import Node
from brimful.scheduler.placing.kernels import PLACERS, Columns, Gradient, Kinds, Mix, Worth, exact
from brimful.scheduler.placing.prices import most_worth, shadow_prices
from brimful.sim.fill import Workload, columns_of, fill, gpu_types_of, order, workload_of
from brimful.sim.traces.read import read
from tests.builders import refuses

EXAMPLES = Path(__file__).parents[2] / "examples"


def a_node(gpus: int = 8, *, cpu: int | None = None, gpu: str = "a100", name: str = "n") -> Node:
    return Node(
        site="sim", node=name, gpu=gpu, gpus=gpus, microusd_per_gpu_hour=0, declared=True, cpu_milli=cpu
    )


def a_task(gpus: int = 1, *, milli: int = 1000, cpu: int = 0, types: tuple[str, ...] = ()) -> Job:
    return Job(job="t", gpus=gpus, gpu_milli=milli, cpu_milli=cpu, gpu_types=types)


def placed(policy: str, nodes: list[Node], tasks: list[Job]) -> Columns:
    """The tasks, in this very order, on nodes in this very order."""
    types = gpu_types_of(nodes)
    columns, work = columns_of(nodes, types), workload_of(tasks, types)
    placer = PLACERS[policy](columns, work.kinds, np.random.default_rng(0))
    for kind, memory in zip(work.kind.tolist(), work.memory_mib.tolist(), strict=True):
        fitting = columns.fitting(work.kinds, kind, memory_mib=memory)
        node = int(fitting[np.argmax(placer.scores(kind, fitting))])
        columns.take(work.kinds, kind, memory_mib=memory, node=node, devices=placer.devices(kind, node))
    return columns


def the_example() -> tuple[list[Node], Workload]:
    trace, _ = read([str(EXAMPLES / "fill_nodes.csv"), str(EXAMPLES / "fill_pods.csv")])
    return trace.nodes, workload_of([a.job for a in trace.arrivals], gpu_types_of(trace.nodes))


def test_the_command_line_knows_every_placer() -> None:
    assert sorted(FILL_POLICIES) == sorted(PLACERS)


@pytest.mark.parametrize("policy", sorted(set(PLACERS) - {"random", "dot-product"}))
def test_two_halves_share_one_gpu_instead_of_breaking_two(policy: str) -> None:
    columns = placed(policy, [a_node(2, cpu=8000)], [a_task(milli=500), a_task(milli=500)])
    assert sorted(columns.gpu_milli[0].tolist()) == [0, 1000]


@pytest.mark.parametrize("policy", ["best-fit", "packing", "fgd", "brim"])
def test_a_small_task_leaves_the_empty_large_node_to_the_gang(policy: str) -> None:
    nodes = [a_node(8, name="large"), a_node(1, name="small")]
    columns = placed(policy, nodes, [a_task(1), a_task(8)])
    assert columns.gpu_milli.sum(axis=1).tolist() == [0, 0]


def test_brim_sees_stranded_gpus_where_fgd_sees_none() -> None:
    """On the first node the hungry task leaves 3 GPUs and CPUs for one common task: room for all, says F."""
    nodes = [a_node(4, cpu=20_000, name="balanced"), a_node(4, cpu=64_000, name="rich")]
    tasks = [a_task(1, cpu=15_000)] + [a_task(1, cpu=5_000)] * 39
    types = gpu_types_of(nodes)
    work = workload_of(tasks, types)
    chosen = {}
    for policy in ("fgd", "brim"):
        placer = PLACERS[policy](columns_of(nodes, types), work.kinds, np.random.default_rng(0))
        chosen[policy] = nodes[int(np.argmax(placer.scores(0, np.array([0, 1]))))].node
    assert chosen == {"fgd": "balanced", "brim": "rich"}


def test_brim_keeps_rare_gpus_for_the_tasks_that_need_them() -> None:
    nodes = [a_node(1, gpu="rare", name="a"), a_node(8, gpu="common", name="b")]
    columns = placed("brim", nodes, [a_task(1), a_task(1), a_task(1, types=("rare",))])
    assert columns.gpu_milli.sum(axis=1).tolist() == [0, 6000]
    assert placed("best-fit", nodes, [a_task(1)]).gpu_milli[0].sum() == 0, "best fit takes it at once"


def test_a_task_goes_only_to_a_gpu_it_allows() -> None:
    nodes = [a_node(8, gpu="t4", name="a"), a_node(8, gpu="v100", name="b")]
    columns = placed("best-fit", nodes, [a_task(1, types=("v100", "p100"))])
    assert columns.gpu_milli.sum(axis=1).tolist() == [8000, 7000]


def test_a_task_goes_only_to_a_gpu_whose_memory_its_share_suffices_for() -> None:
    small, large = "a100-sxm-40gb", "a100-sxm-80gb"
    nodes = [a_node(8, gpu=small, name="a"), a_node(8, gpu=large, name="b")]
    peak = ((small, 30 << 30), (large, 30 << 30))
    half, whole = replace(a_task(1, milli=500), peak_bytes=peak), replace(a_task(1), peak_bytes=peak)

    assert placed("best-fit", nodes, [half] * 2).gpu_milli.sum(axis=1).tolist() == [8000, 7000]
    assert placed("best-fit", nodes, [whole]).gpu_milli.sum(axis=1).tolist() == [7000, 8000]
    quarter = replace(a_task(1, milli=250), peak_bytes=peak)
    work = workload_of([quarter, whole, a_task(1)], gpu_types_of(nodes))
    assert work.unfit == 1
    filled = fill(nodes, work, policy="brim", seed=0, until=0.5)
    assert filled.placed < filled.tasks, "the quarter has 10 or 20 GiB and needs 30"


def test_a_task_goes_only_to_a_type_it_has_a_rate_for() -> None:
    nodes = [a_node(8, gpu="t4", name="a"), a_node(8, gpu="v100", name="b")]
    task = replace(a_task(1), rates=(("v100", 1.0), ("t4", 0.0)))
    assert placed("best-fit", nodes, [task]).gpu_milli.sum(axis=1).tolist() == [8000, 7000]


def test_fragmentation_is_what_the_paper_defines() -> None:
    """Worked by hand: half the tasks want half a GPU, half want two whole ones."""
    tasks = [a_task(1, milli=500, cpu=1000), a_task(2, cpu=4000)]
    kinds = workload_of(tasks, ["a100"]).kinds
    of = Mix(kinds).fragmentation
    # 400 + 1000 idle: the share cannot use the 400, the pair can use nothing.
    assert of(np.array([9000]), np.array([[400, 1000]]), np.array([0])) == pytest.approx(
        [0.5 * 400 + 0.5 * 1400]
    )
    # Two whole GPUs and CPUs for both: nothing is lost. CPUs for the share alone: the pair loses all.
    assert of(np.array([9000]), np.array([[1000, 1000]]), np.array([0])) == pytest.approx([0.0])
    assert of(np.array([3000]), np.array([[1000, 1000]]), np.array([0])) == pytest.approx([1000.0])


def test_a_task_without_gpus_can_use_no_idle_gpu() -> None:
    kinds = workload_of([a_task(1), a_task(0)], ["a100"]).kinds
    free = np.array([[1000, 1000]])
    assert Mix(kinds).fragmentation(np.array([10]), free, np.array([0])) == pytest.approx([1000.0])


def plain_fragmentation(kinds: Kinds, cpu: int, free: list[int], gpu_type: int) -> float:
    """The paper's sum, task by task: the twin of the array kernel."""
    total = 0.0
    for k in range(len(kinds.count)):
        gpus, milli = int(kinds.gpus[k]), int(kinds.gpu_milli[k])
        fits = (
            gpus > 0
            and bool(kinds.allowed[k][gpu_type])
            and cpu >= kinds.cpu_milli[k]
            and sum(left >= milli for left in free) >= gpus
        )
        lost = sum(left for left in free if left < milli) if fits else sum(free)
        total += kinds.count[k] / kinds.count.sum() * lost
    return total


TASKS = st.lists(
    st.one_of(
        st.builds(a_task, st.just(1), milli=st.integers(1, 1000), cpu=st.integers(0, 9000)),
        st.builds(a_task, st.sampled_from([0, 2, 4]), cpu=st.integers(0, 9000)),
        st.builds(a_task, st.just(1), types=st.sampled_from([("t4",), ("a100", "t4")])),
    ),
    min_size=1,
    max_size=12,
)
FREE = st.lists(st.integers(0, 1000), min_size=4, max_size=4)


@given(TASKS, st.lists(st.tuples(st.integers(0, 20_000), FREE, st.integers(0, 1)), min_size=1, max_size=6))
def test_the_kernels_equal_their_plain_twins(
    tasks: list[Job], states: list[tuple[int, list[int], int]]
) -> None:
    kinds = workload_of(tasks, ["a100", "t4"]).kinds
    cpu, free, gpu_type = (np.array([state[i] for state in states]) for i in range(3))
    mix = Mix(kinds)
    assert mix.fragmentation(cpu, free, gpu_type) == pytest.approx(
        [plain_fragmentation(kinds, *state) for state in states], abs=1e-6
    )


@given(TASKS)
@settings(max_examples=40)
def test_no_set_of_tasks_on_a_gpu_is_worth_more_than_the_gpu(tasks: list[Job]) -> None:
    """So as many GPUs are needed as the prices of all tasks add up to, however they are packed."""
    milli = np.array([t.gpu_milli for t in tasks if t.gpus], dtype=np.int64)
    sizes, counts = np.unique(milli, return_counts=True)
    price = shadow_prices(sizes, counts.astype(np.float64))
    worth = most_worth(sizes, price, 1000)
    assert (np.diff(worth) >= 0).all()
    assert worth[-1] == pytest.approx(1.0)
    assert (price >= 0).all()


def test_a_rest_is_worth_what_will_fill_it() -> None:
    """As in openb: 0.81 and 0.47 are common, 0.16 is rare. A rest of 0.19 is worth nothing."""
    sizes = np.array([160, 470, 810])
    price = shadow_prices(sizes, np.array([10.0, 700.0, 1000.0]))
    assert price.tolist() == pytest.approx([0.0, 0.5, 1.0])
    assert most_worth(sizes, price, 1000)[[190, 470, 530, 940]].tolist() == pytest.approx(
        [0.0, 0.5, 0.5, 1.0]
    )


@given(TASKS, st.integers(0, 5))
@settings(max_examples=30)
def test_a_remembered_score_is_the_score_computed_anew(tasks: list[Job], seed: int) -> None:
    nodes = [a_node(4, cpu=20_000, name=f"n{i}", gpu=("a100", "t4")[i % 2]) for i in range(5)]
    types = gpu_types_of(nodes)
    columns, work = columns_of(nodes, types), workload_of(tasks, types)
    remembering = Gradient(columns, work.kinds, Worth(work.kinds).stays_idle, exact)
    for task in np.random.default_rng(seed).integers(len(tasks), size=20).tolist():
        kind = int(work.kind[task])
        fitting = columns.fitting(work.kinds, kind, memory_mib=0)
        if not len(fitting):
            continue
        scores = remembering.scores(kind, fitting)
        forgetful = Gradient(columns, work.kinds, Worth(work.kinds).stays_idle, exact)
        assert scores.tolist() == forgetful.scores(kind, fitting).tolist()
        node = int(fitting[np.argmax(scores)])
        devices = remembering.devices(kind, node) if work.kinds.gpus[kind] else np.empty(0, dtype=np.int64)
        columns.take(work.kinds, kind, memory_mib=0, node=node, devices=devices)


@pytest.mark.parametrize("policy", sorted(PLACERS))
def test_a_fill_is_reproducible_and_never_overfull(policy: str) -> None:
    nodes, work = the_example()
    first, second = (fill(nodes, work, policy=policy, seed=3) for _ in range(2))
    assert first.allocated_percent.tolist() == second.allocated_percent.tolist()
    assert first.allocated_percent[-1] <= 100
    assert first.arrived_percent[-1] == pytest.approx(130, abs=10)
    assert (
        first.allocated_percent.tolist()
        != fill(nodes, work, policy=policy, seed=4).allocated_percent.tolist()
    )


def test_every_policy_meets_the_same_tasks_and_no_task_that_fits_is_refused() -> None:
    nodes, work = the_example()
    runs = [fill(nodes, work, policy=policy, seed=0) for policy in PLACERS]
    assert len({tuple(run.arrived_percent) for run in runs}) == 1
    low = [run for run in runs if run.allocation_at["50"] is not None]
    assert all(abs((run.allocation_at["50"] or 0) - 50) < 6 for run in low)


def test_a_trace_that_asks_for_more_than_wanted_ends_early() -> None:
    _, work = the_example()
    tasks = order(work, 20_000, until=1.0, rng=np.random.default_rng(0))
    assert work.kinds.asked_milli[work.kind[tasks]].sum() <= 20_000
    assert len(set(tasks.tolist())) == len(tasks), "no task comes twice before all have come"


def test_a_fill_that_would_never_end_is_refused() -> None:
    crumbs = workload_of([a_task(milli=1)], ["a100"])
    with refuses(BadInput, "sim.fill_too_many_tasks", 10_400_000.0):
        fill([a_node(8, name=f"n{i}") for i in range(1000)], crumbs, policy="brim", seed=0)


def test_a_fill_without_gpus_is_refused() -> None:
    work = workload_of([a_task(0)], ["a100"])
    with refuses(BadInput, "sim.no_gpu_tasks"):
        fill([a_node()], work, policy="brim", seed=0)
    with refuses(BadInput, "sim.fill_without_gpus"):
        fill([a_node(0)], workload_of([a_task()], ["a100"]), policy="brim", seed=0)


def authors_mean(shared_data: Path, workload: str, policy: str, percent: str) -> float:
    """The FGD authors' own result files: mean of ten seeds."""
    path = shared_data / "traces" / "openb" / "fgd_expected_allo_discrete.csv.gz"
    with gzip.open(path, "rt", encoding="utf-8") as file:
        rows = [
            float(row[percent])
            for row in csv.DictReader(file)
            if row["workload"] == f"openb_pod_list_{workload}" and row["sc_policy"].endswith(policy)
        ]
    return fmean(rows)


def openb(shared_data: Path, workload: str) -> tuple[list[Node], Workload]:
    folder = shared_data / "traces" / "openb"
    trace, _ = read(
        [str(folder / "openb_node_list_gpu_node.csv.gz"), str(folder / f"openb_pod_list_{workload}.csv.gz")]
    )
    return trace.nodes, workload_of([a.job for a in trace.arrivals], gpu_types_of(trace.nodes))


@pytest.mark.parametrize(("policy", "theirs"), [("best-fit", "BestFit"), ("fgd", "FGD")])
@pytest.mark.parametrize("workload", ["default", "gpuspec20"])
def test_openb_comes_out_as_its_authors_published(
    shared_data: Path, workload: str, policy: str, theirs: str
) -> None:
    """Two seeds here; all workloads with ten seeds are a benchmark (`make bench ARGS=fill`)."""
    nodes, work = openb(shared_data, workload)
    runs = [fill(nodes, work, policy=policy, seed=seed) for seed in (0, 1)]
    for percent in ("100", "130"):
        ours = fmean(run.allocation_at[percent] or 0.0 for run in runs)
        assert ours == pytest.approx(authors_mean(shared_data, workload, theirs, percent), abs=1.0)


def test_brim_fills_openb_fuller_than_fgd_ever_did(shared_data: Path) -> None:
    nodes, work = openb(shared_data, "default")
    at = fill(nodes, work, policy="brim", seed=0).allocation_at["130"]
    assert at is not None
    assert at >= 95.4
