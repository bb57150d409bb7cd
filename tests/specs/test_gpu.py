import pytest

from brimful.errors import NotFound
from brimful.language import Sentence
from brimful.specs.gpu import all_gpus, find_gpu
from brimful.units import GIB
from tests.builders import refuses


@pytest.mark.parametrize(
    ("spoken", "name"),
    [
        ("4070", "rtx-4070"),
        ("rtx4070", "rtx-4070"),
        ("RTX 4070", "rtx-4070"),
        ("NVIDIA GeForce RTX 4070", "rtx-4070"),
        ("NVIDIA GeForce RTX 4070 Ti SUPER", "rtx-4070-ti-super"),
        ("2080ti", "rtx-2080-ti"),
        ("NVIDIA A100-SXM4-80GB", "a100-sxm-80gb"),
        ("NVIDIA A100 80GB PCIe", "a100-pcie-80gb"),
        ("Tesla V100-SXM2-16GB", "v100-sxm-16gb"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("NVIDIA H100 PCIe", "h100-pcie-80gb"),
        ("h100", "h100-sxm-80gb"),
        ("Tesla T4", "t4"),
        ("NVIDIA L40", "l40"),
        ("AMD Instinct MI300X", "mi300x"),
    ],
)
def test_a_card_is_known_by_every_name_people_and_drivers_use(spoken: str, name: str) -> None:
    assert find_gpu(spoken).name == name


@pytest.mark.parametrize("spoken", ["a100", "v100", "4060 ti", "NVIDIA GeForce RTX 4060 Ti"])
def test_a_name_that_leaves_the_memory_open_lists_the_choices(spoken: str) -> None:
    with pytest.raises(NotFound) as refused:
        find_gpu(spoken)

    assert refused.value.code == "ambiguous_gpu"
    assert "gb, " in refused.value.problem


def test_a_wrong_name_suggests_the_nearest() -> None:
    with refuses(NotFound, "specs.name_unknown") as refused:
        find_gpu("4071")

    assert isinstance(refused.value.way_out, Sentence)
    assert refused.value.way_out.code == "specs.hint_did_you_mean"
    assert str(refused.value.way_out.values["names"]).startswith("rtx-4070")


@pytest.mark.parametrize("nonsense", ["", "   ", "🙂", "x" * 100_000, "\x00", "gb" * 5000])
def test_nonsense_is_refused_in_one_short_sentence(nonsense: str) -> None:
    with pytest.raises(NotFound) as refused:
        find_gpu(nonsense)

    assert len(refused.value.problem) < 400


def test_every_card_is_found_by_its_own_name_and_aliases() -> None:
    for gpu in all_gpus():
        assert find_gpu(gpu.name) is gpu
        for alias in gpu.aliases:
            assert find_gpu(alias) is gpu, alias


def test_every_card_is_physically_plausible() -> None:
    for gpu in all_gpus():
        peaks = gpu.dense_flops_per_s
        assert 2010 < gpu.year < 2030, gpu.name
        assert 4 * GIB < gpu.memory_bytes < 400 * GIB, gpu.name
        assert 100e9 < gpu.bandwidth_bytes_per_s < 20e12, gpu.name
        assert ("bf16" in peaks) == gpu.bf16, gpu.name
        assert peaks["fp32"] <= peaks.get("fp16", peaks["fp32"]), gpu.name
        # GeForce cards clock above the boost clock that their peak is given for.
        most = 1.17 if gpu.geforce else 1.0
        peak = peaks["bf16"] if gpu.bf16 else peaks.get("fp16", peaks["fp32"])
        assert gpu.achievable_flops_per_s is None or gpu.achievable_flops_per_s < most * peak, gpu.name
        assert gpu.pcie_generation or gpu.link_bytes_per_s, gpu.name
        assert gpu.memory_basis in ("seen", "recalled", "estimated")
        assert len(gpu.source) > 5, gpu.name


def test_the_cards_our_users_have_are_there() -> None:
    names = {gpu.name for gpu in all_gpus()}
    asked = """k80 p100-pcie-16gb v100-sxm-16gb v100-sxm-32gb t4 a10 a10g l4 l40s a100-sxm-40gb a100-sxm-80gb
        rtx-a6000 rtx-2080-ti rtx-3060-12gb rtx-3090 rtx-4060-ti-8gb rtx-4060-ti-16gb rtx-4070 rtx-4070-ti
        rtx-4080 rtx-4090 rtx-5090 h100-sxm-80gb h100-pcie-80gb h200-sxm-141gb b200-sxm-180gb mi250x mi300x"""

    assert set(asked.split()) <= names


def test_peaks_are_dense_with_fp32_accumulate() -> None:
    assert find_gpu("rtx-4090").dense_flops_per_s["bf16"] == 165.2e12  # 330.3 accumulates in fp16
    assert find_gpu("l4").dense_flops_per_s["bf16"] == 121e12  # 242 is with sparsity
    assert find_gpu("h100").dense_flops_per_s["bf16"] == 989e12
    assert find_gpu("mi250x").dense_flops_per_s["bf16"] == 191.5e12  # one die of two


def test_turing_and_older_have_no_bf16() -> None:
    for name in ("k80", "p100", "v100-16gb", "t4", "2080 ti"):
        assert not find_gpu(name).bf16


@pytest.mark.parametrize(
    ("text", "name"), [("RTX 4090 24GB", "rtx-4090"), ("T4 16 GB", "t4"), ("L40S-48GB", "l40s")]
)
def test_a_name_with_its_own_gigabytes_is_the_card(text: str, name: str) -> None:
    assert find_gpu(text).name == name


def test_a_name_with_other_gigabytes_is_not() -> None:
    with refuses(NotFound, "specs.size_unknown"):
        find_gpu("rtx 4090 48gb")


def test_a_power_limit_lowers_the_rate_of_a_measured_card() -> None:
    """The L40S's chip at 300 instead of 350 W; an H100 at 350 instead of 700 W, 114 of 132 processors."""
    for name, like, share in (("rtx-6000-ada", "l40s", 0.950), ("h100-pcie-80gb", "h100-sxm-80gb", 0.720)):
        card, measured = find_gpu(name), find_gpu(like)
        assert card.clocked_like == like
        assert card.achievable_flops_per_s is not None
        assert measured.achievable_flops_per_s is not None
        assert card.achievable_flops_per_s / measured.achievable_flops_per_s == pytest.approx(
            share, abs=0.001
        )
