"""Real messages from public issues, read to the figures a person reads; and texts that are none."""

from __future__ import annotations

import random
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from brimful.configs.read import read
from brimful.diagnose.explain import About, Explanation, answer, explain, finding
from brimful.diagnose.rates import own_mfu
from brimful.fit.count import A100_FLOPS_PER_S
from brimful.language import language
from brimful.specs.gpu import find_gpu

ROOT = Path(__file__).resolve().parents[2]
REAL = tomllib.loads((Path(__file__).parent / "messages.toml").read_text(encoding="utf-8"))
UNITS = {"G": 2**30, "M": 2**20, "K": 2**10}
ENGLISH = language("en")


def eye(text: str) -> Any:
    """'3.44G', '0.56731', 'nanoGPT' or 'none', as the fixture writes what a person reads."""
    if text == "none":
        return None
    if text[-1] in UNITS and text[:-1].replace(".", "", 1).isdigit():
        return round(float(text[:-1]) * UNITS[text[-1]])
    try:
        return float(text)
    except ValueError:
        return text.replace("_", " ")


def expected(text: str) -> dict[str, Any]:
    pairs = (word.split("=") for word in text.split())
    sizes = ("tried", "total", "free", "allocated", "reserved", "cached", "process", "other", "allowed")
    return {(f"{key}_bytes" if key in sizes else key): eye(value) for key, value in pairs}


def only(text: str, kind: str) -> Explanation:
    (found,) = (one for one in explain(text) if one.kind == kind)
    return found


def codes(one: Explanation) -> set[str]:
    return {finding(said) for said in one.says}


def missing(one: Explanation) -> set[str]:
    return {finding(said) for said in one.missing}


def by_source(kind: str) -> pytest.MarkDecorator:
    return pytest.mark.parametrize("row", REAL[kind], ids=lambda row: row["source"])


def test_there_are_enough_of_them_and_each_tells_its_source() -> None:
    rows = [row for kind in REAL.values() for row in kind]

    assert len(rows) >= 90
    assert all("#" in row["source"] for row in rows)
    assert len({row["source"] for row in rows}) == len(rows)


@by_source("message")
def test_an_out_of_memory_message_is_read_to_its_figures(row: dict[str, Any]) -> None:
    found = only(row["text"], "out_of_memory")
    for name, value in expected(row["expect"]).items():
        if name == "others":
            assert found.facts["other_process_bytes"] == (value,)
        else:
            assert found.facts[name] == value, name
    assert set(row.get("says", ())) <= codes(found)
    assert not set(row.get("not", ())) & codes(found)


@by_source("line")
def test_a_log_line_is_read_to_its_figures(row: dict[str, Any]) -> None:
    found = only(row["text"], "log_line")
    for name, value in expected(row["expect"]).items():
        seen = found.facts[name]
        assert seen == (pytest.approx(value, rel=1e-4) if isinstance(value, float) else value), name
    assert set(row.get("says", ())) <= codes(found)


@by_source("table")
def test_an_nvidia_smi_table_is_read_to_its_figures(row: dict[str, Any]) -> None:
    found = only(row["text"], "nvidia_smi")
    cards = [
        f"{card['index']} | {card['name']} | "
        f"{card['used_bytes'] // 2**20} | {card['total_bytes'] // 2**20} | "
        + (f"{100 * card['busy_frac']:.0f}" if card["busy_frac"] is not None else "-")
        + (f" | {card['watts']:.0f} | {card['watts_cap']:.0f}" if card["watts"] else " | - | -")
        for card in found.facts["cards"]
    ]
    processes = [f"{p['gpu']} | {p['program']} | {p['bytes'] // 2**20}" for p in found.facts["processes"]]

    assert cards == row["cards"]
    assert processes == row.get("processes", [])
    assert {"memory_is_not_compute", "util"} <= codes(found)


@by_source("summary")
def test_a_memory_summary_is_read_to_its_figures(row: dict[str, Any]) -> None:
    found = only(row["text"], "memory_summary")
    want = expected(row["expect"])

    assert (found.facts["ooms"], found.facts["retries"]) == (want["ooms"], want["retries"])
    assert found.facts["peak_bytes"]["allocated"] == want["allocated_bytes"]
    assert found.facts["peak_bytes"]["reserved"] == want["reserved_bytes"]
    assert found.facts["current_bytes"]["allocated"] == want["now"]
    assert set(row.get("says", ())) <= codes(found)


# -- which tensor ------------------------------------------------------------------------------------------

FINEWEB = read(str(ROOT / "examples" / "nanogpt" / "train_fineweb.py"))
LOGITS_BYTES = 16 * 1024 * 50304 * 2


def told(one: Explanation, code: str) -> dict[str, Any]:
    """The code and the plain values of the only sentence with that finding."""
    (said,) = (said for said in one.says if finding(said) == code)
    return said.plain()


def test_a_line_of_inductor_is_the_logits() -> None:
    text = "buf1 = empty_strided_cuda((16, 1024, 50304), (51511296, 50304, 1), torch.bfloat16)"
    (found,) = explain(text)

    by_shape = told(found, "tensor")
    assert (by_shape["shape"], by_shape["size"]) == ("16 x 1024 x 50304", LOGITS_BYTES)
    assert by_shape["what"] == {
        "code": "diagnose.tensor_by_shape",
        "what": {"code": "diagnose.tensor_logits"},
    }
    (found,) = explain(text, About(reading=FINEWEB))
    assert told(found, "tensor")["what"] == {"code": "diagnose.tensor_logits"}


def test_a_line_without_its_format_tells_both_and_asks() -> None:
    (found,) = explain("buf1 = empty_strided_cuda((16, 1024, 50304), …)")

    tensor = told(found, "tensor")
    assert (tensor["half"], tensor["full"]) == (LOGITS_BYTES, 2 * LOGITS_BYTES)
    assert "needs_dtype" in missing(found)


def test_a_message_names_the_tensor_only_where_the_config_gives_one_of_that_size() -> None:
    about = About(reading=FINEWEB)
    message = (
        "CUDA out of memory. Tried to allocate {} (GPU 0; 11.69 GiB total capacity; 9 GiB already allocated; "
        "1 GiB free; 9 GiB reserved in total by PyTorch)"
    )

    tensor = told(explain(message.format("1.54 GiB"), about)[0], "tensor")
    assert (tensor["size"], tensor["what"]) == (LOGITS_BYTES, {"code": "diagnose.tensor_logits"})
    for other in ("1.50 GiB", "1.60 GiB", "333.00 MiB"):
        found = explain(message.format(other), about)[0]
        assert "tensor" not in codes(found)
        assert "tensor_unknown" in codes(found)
    assert "needs_config" in missing(explain(message.format("1.54 GiB"))[0])


@pytest.mark.parametrize(
    ("frame", "where"),
    [
        ("loss.backward()\n  return Variable._execution_engine.run_backward(", "in_backward"),
        ("loss = F.cross_entropy(logits.view(-1, logits.size(-1)), targets.view(-1))", "in_loss"),
        ("logits = self.lm_head(x)", "in_logits"),
        (
            "optimizer.step()\n state['exp_avg_sq'] = torch.zeros_like(p, memory_format=f)",
            "in_first_optimizer_step",
        ),
        ("att = F.softmax(att, dim=-1)", "in_attention"),
        ("model.to(device)", "in_model_move"),
        ("losses = estimate_loss()\n logits, loss = model(X, Y)\n return F.linear(x, w)", "in_evaluation"),
        ("self.accelerator.backward(loss)\n return F.linear(x, w)", "in_backward"),
    ],
)
def test_the_traceback_says_where_in_the_step(frame: str, where: str) -> None:
    text = f"Traceback (most recent call last):\n  {frame}\nCUDA out of memory. Tried to allocate 1.54 GiB."

    assert told(explain(text)[0], "moment")["where"] == {"code": f"diagnose.{where}"}


@pytest.mark.parametrize(
    "frame", ["x = x.to(device)", "p = F.log_softmax(logits, dim=-1)", "y = torch.cat((a, b))"]
)
def test_a_traceback_without_a_sign_says_nothing(frame: str) -> None:
    text = f"Traceback (most recent call last):\n  {frame}\nCUDA out of memory. Tried to allocate 1.54 GiB."

    assert "moment" not in codes(explain(text)[0])


def test_a_matrix_that_may_be_two_things_is_told_as_either() -> None:
    either = explain("buf3 = empty_strided_cuda((4096, 32000), (32000, 1), torch.bfloat16)")[0]
    logits = explain("buf3 = empty_strided_cuda((65536, 32000), (32000, 1), torch.bfloat16)")[0]

    assert told(either, "tensor")["what"]["what"] == {"code": "diagnose.tensor_logits_or_output"}
    assert told(logits, "tensor")["what"]["what"] == {"code": "diagnose.tensor_logits"}


# -- MFU ---------------------------------------------------------------------------------------------------

# nanoGPT prints 20 %: 62.4 TFLOPS. The same over each card's dense bf16 peak of its data sheet, fp16 for the
# cards without bf16; fractions worked out by hand.
TEN = {
    "a100-sxm-80gb": 62.4 / 312,
    "h100-sxm-80gb": 62.4 / 989.4,
    "rtx-4090": 62.4 / 165.2,
    "rtx-3090": 62.4 / 71.0,
    "v100-sxm-32gb": 62.4 / 125,
    "t4": 62.4 / 65,
    "l4": 62.4 / 121,
    "a10": 62.4 / 125,
    "rtx-5090": 62.4 / 209.5,
    "l40s": 62.4 / 362.05,
}


@pytest.mark.parametrize(("card", "mfu"), TEN.items())
def test_nanogpts_printed_mfu_is_rebased_for_ten_cards(card: str, mfu: float) -> None:
    assert own_mfu(0.20 * A100_FLOPS_PER_S, find_gpu(card))[0] == pytest.approx(mfu, rel=0.005)


def test_a_table_beside_the_log_names_the_card() -> None:
    card = "|   0  NVIDIA GeForce RTX 4070        Off |   00000000:01:00.0  On |                  N/A |"
    use = "| 30%   61C    P2            182W /  200W |   11052MiB /  12282MiB |     99%      Default |"
    both = explain(f"{card}\n{use}\niter 4000: loss 3.1, time 7019.0ms, mfu 10.00%")

    (line,) = (one for one in both if one.kind == "log_line")
    assert told(line, "own_mfu")["gpu"] == "NVIDIA GeForce RTX 4070"
    assert told(line, "own_mfu")["mfu"] == pytest.approx(0.535, abs=5e-4)
    cut = explain(
        f"{card.replace('RTX 4070', 'RTX 4...')}\n{use}\niter 4000: loss 3.1, time 7019.0ms, mfu 10.00%"
    )
    assert not any("own_mfu" in codes(one) for one in cut)


def test_an_impossible_mfu_is_called_so_and_a_possible_one_is_not() -> None:
    line = "iter 4000: loss 3.1, time 245.1ms, mfu {}%"
    impossible = explain(line.format(30), About(gpu=find_gpu("rtx-4070")))[0]
    possible = explain(line.format(10), About(gpu=find_gpu("rtx-4070")))[0]

    assert {"impossible", "impossible_why"} <= codes(impossible)
    assert "own_mfu" not in codes(impossible)
    assert "own_mfu" in codes(possible)
    own = told(possible, "own_mfu")
    assert (own["mfu"], own["peak"]) == (pytest.approx(0.535, abs=5e-4), pytest.approx(58.3, abs=0.05))
    assert own["format"] == "bf16"


def test_an_h100_that_seems_to_reach_104_per_cent_is_at_33() -> None:
    """karpathy/nanoGPT PR 464."""
    found = explain("iter 9: loss 3.1, time 245.1ms, mfu 104.00%", About(gpu=find_gpu("h100-sxm-80gb")))[0]

    assert told(found, "own_mfu")["mfu"] == pytest.approx(0.328, abs=5e-4)


def test_nanochats_line_of_an_a100_was_not_divided_by_an_h100() -> None:
    """karpathy/nanochat PR 147 prints 74 % with a table of its own; by the H100's peak it would be 235 %."""
    row = next(row for row in REAL["line"] if row["source"] == "karpathy/nanochat#147")

    assert "impossible" in codes(explain(row["text"], About(gpu=find_gpu("a100-sxm-80gb")))[0])


def test_torchtitan_divides_an_unknown_card_by_an_a100() -> None:
    row = next(row for row in REAL["line"] if row["source"] == "pytorch/torchtitan#3393")

    assert told(explain(row["text"])[0], "divided_by")["card"] == "NVIDIA A100-SXM4-80GB"


def test_with_the_config_the_figure_is_judged_by_the_prediction() -> None:
    from brimful.fit.fit import fit_reading

    gpu = find_gpu("rtx-4070")
    about = About(reading=FINEWEB, gpu=gpu, estimate=fit_reading(FINEWEB, gpu, correction=None))
    for mfu, code in ((12.3, "as_predicted"), (2.0, "below_predicted")):
        assert code in codes(explain(f"iter 4000: loss 3.1, time 7000.1ms, mfu {mfu}%", about)[0])


def test_the_trainers_samples_are_turned_into_flops_by_the_config() -> None:
    rates = "'train_samples_per_second': 64.0, 'train_steps_per_second': 0.125"
    text = f"{{'train_runtime': 100.0, {rates}, 'epoch': 1.0}}"
    about = About(reading=FINEWEB, gpu=find_gpu("rtx-4070"))
    found = explain(text, about)[0]

    assert found.facts["step_s"] == 8.0
    assert {"no_mfu", "at_most", "own_mfu"} <= codes(found)


# -- what is no message ------------------------------------------------------------------------------------

NOTHING = [
    "",
    "hello",
    "out of memory",
    "the GPU has 12 GiB",
    "mfu 12%",
    "iter 5",
    "| 0 NVIDIA |",
    "\x00\xff" * 50,
    "tried to allocate a lot",
]


@pytest.mark.parametrize("text", NOTHING)
def test_what_is_no_message_is_not_explained(text: str) -> None:
    assert explain(text) == ()


@by_source("message")
def test_a_message_cut_off_anywhere_never_gains_a_figure(row: dict[str, Any]) -> None:
    """What is read from the beginning of a message is what the whole says, or nothing."""
    whole = only(row["text"], "out_of_memory").facts
    for end in range(0, len(row["text"]), 7):
        for one in explain(row["text"][:end]):
            if one.kind == "out_of_memory":
                for name, value in one.facts.items():
                    derived = name in ("reserved_bytes", "cached_bytes")
                    assert value in (None, (), [], "CUDA") or value == whole[name] or derived, (end, name)
            verdicts = codes(one) & {"fragmentation", "no_fragmentation", "free_enough"}
            assert verdicts <= codes(only(row["text"], "out_of_memory"))


def test_a_nearly_full_card_that_would_have_served_the_request_from_pieces_names_both_causes() -> None:
    """Live tensors fill 9.80 of 11.72 GiB; of 512 MiB wanted, 622 were free or cached, in pieces."""
    found = answer(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 512.00 MiB. GPU 0 has a total capacity"
        " of 11.72 GiB of which 210.12 MiB is free. Including non-PyTorch memory, this process has 10.90 GiB"
        " memory in use. Of the allocated memory 9.80 GiB is allocated by PyTorch, and 412.30 MiB is reserved"
        " by PyTorch but unallocated."
    )

    assert found is not None
    assert (found.cause, found.certain, found.also) == ("own_tensors_fill_card", False, ("fragmentation",))


def test_two_ranks_printing_into_each_other_are_not_mixed_up() -> None:
    one = REAL["message"][22]["text"]
    two = REAL["message"][23]["text"]
    half = len(one) // 2
    figures = {name for row in (one, two) for name, v in only(row, "out_of_memory").facts.items() if v}
    for found in explain(one[:half] + two[:200] + one[half:] + two[200:]):
        assert found.facts["mixed"] or found.facts["tried_bytes"] in (
            only(one, "out_of_memory").facts["tried_bytes"],
            only(two, "out_of_memory").facts["tried_bytes"],
        )
        for name in found.facts["mixed"]:
            assert found.facts[name] is None
            assert name in figures


NOISE = """[rank0]:[W723 15:38:12.121348168 ProcessGroupNCCL.cpp:1168] Warning: WARNING: process group has NOT
been destroyed before we destruct ProcessGroupNCCL. (function operator())
W0723 15:38:16.196000 140568014320832 torch/distributed/elastic/multiprocessing/api.py:858] Sending process
751 closing signal SIGTERM
srun: error: node-17: tasks 0-7: Exited with exit code 1
wandb: Waiting for W&B process to finish... (failed 1). Press Control-C to abort syncing.
wandb: train/loss 3.21, 100%|██████| 4/4 [00:00<00:00, 1.2MB/s]
"""


@by_source("message")
def test_a_message_is_found_before_and_behind_noise(row: dict[str, Any]) -> None:
    plain = only(row["text"], "out_of_memory")
    noisy = only(f"{NOISE}{row['text']}\n{NOISE * 6}", "out_of_memory")

    assert noisy.facts == plain.facts
    assert codes(noisy) - {"moment"} == codes(plain) - {"moment"}


def test_ranks_that_fail_one_after_another_are_each_told() -> None:
    one, two = (REAL["message"][n]["text"] for n in (22, 23))
    found = [
        each.facts for each in explain(f"{one}\n{NOISE}{two}\n{NOISE}{one}") if each.kind == "out_of_memory"
    ]

    assert found == [only(one, "out_of_memory").facts, only(two, "out_of_memory").facts]


def test_a_progress_bar_is_held_against_a_prediction_and_gets_no_mfu() -> None:
    from brimful.fit.fit import fit_reading

    gpu = find_gpu("rtx-4070")
    about = About(reading=FINEWEB, gpu=gpu, estimate=fit_reading(FINEWEB, gpu, correction=None))
    found = explain("  3%|█    | 30/1000 [01:26<46:33,  2.88s/it, loss=3.2]", about)[0]

    assert codes(found) == {"iteration", "bar", "beside_bar"}
    assert found.facts["step_s"] == 2.88
    assert told(found, "beside_bar")["n"] == 32  # micro-steps of the config


@pytest.mark.parametrize(
    "text",
    [
        "100%|█████| 4.2G/4.2G [01:00<00:00, 70.1MB/s]",  # a download
        " 50%|█████| 5/10 [00:00<?, ?it/s]",
        " 50%|█████| 5/10 [00:10<00:10, 0.00s/it]",
        "Downloading: 5 [00:10, 2.88s/it]",
        "RESOURCE_EXHAUSTED: Quota exceeded for quota metric",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 7406",
        "OOM when allocating tensor with shape[16,112",
        "allocating 144.00 MiB on device 4",
        "Could not allocate tensor with 2348 bytes",
        "max seq len (4096) is larger than the maximum",
    ],
)
def test_what_only_looks_like_a_message_gives_no_figure(text: str) -> None:
    assert explain(text) == ()


def test_two_messages_of_mps_in_each_other_are_not_believed() -> None:
    one = "MPS backend out of memory (MPS allocated: 9.57 GiB, other allocations: "
    two = "MPS allocated: 1.50 GiB, other allocations: 2.00 GiB, max allowed: 9.07 GiB). Tried to allocate "
    found = only(f"{one}{two}6.25 MB on private pool.", "out_of_memory")

    assert found.facts["allocated_bytes"] is None
    assert "shared" not in codes(found)


@given(st.text(max_size=400))
@settings(max_examples=200, deadline=None)
def test_any_text_is_answered_without_failing(text: str) -> None:
    for one in explain(text):
        assert one.says or one.missing


@given(
    st.randoms(use_true_random=False),
    st.sampled_from([row["text"] for kind in REAL.values() for row in kind]),
)
@settings(max_examples=150, deadline=None)
def test_damaged_messages_are_answered_without_failing(chance: random.Random, text: str) -> None:
    letters = list(text)
    for _ in range(20):
        letters[chance.randrange(len(letters))] = chance.choice("0123456789.|%()GMiB \n\x1b")
    for one in explain("".join(letters)):
        assert one.says or one.missing
        for said in one.says:
            assert ENGLISH.text(said)


def test_hostile_text_takes_no_more_than_its_length() -> None:
    """Repetitions that make careless patterns explode: each is read in well under the test's own limit."""
    for piece in (
        "Tried to allocate ",
        "out of memory ",
        "iter 1: loss ",
        "| 0 a Off ",
        "{'loss': ",
        "((((1, ",
        "step: 1 loss: ",
        "1%|",
        "1%| | 1/1 [1<1, ",
        "OOM when allocating tensor with shape[1,",
        "MPS backend out of memory (MPS allocated: ",
        "RESOURCE_EXHAUSTED: Out of memory ",
        "and type float on device:",
    ):
        explain(piece * 20_000)


def test_a_card_cut_into_slices_is_not_given_the_memory_of_one() -> None:
    card = (
        "|   3  NVIDIA A100-SXM4-80GB          On  | 00000000:C1:00.0 Off |                   On |\n"
        "| N/A   33C    P0              85W / 400W |                  N/A |     N/A      Default |\n"
    )
    part = "|  3    5   0   1  |   9880MiB / 19968MiB | 28      0 |  2   0    1    0    0 |\n"

    assert explain(card) == ()
    (found,) = explain(card + part)
    assert [one["name"] for one in found.facts["cards"]] == ["MIG 1"]
