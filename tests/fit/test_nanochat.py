"""nanochat: tables in bf16, a value table in every other layer, a model that returns its loss alone.

Measured: lzwjava/nanochat, run_rtx4070.log (d8, 4 x 1,024 tokens, compiled, RTX 4070): 125,829,354
parameters, 2.128 GiB allocated in base training and 2.476 in fine-tuning.
"""

from __future__ import annotations

from dataclasses import replace

import pytest

from brimful.configs.flags import read_flags
from brimful.fit.count import parameters, table_parameters
from brimful.fit.fit import estimate
from brimful.fit.states import gradient_bytes, optimizer_bytes, weights_bytes
from brimful.specs.framework import PLAIN, find_framework
from brimful.specs.gpu import find_gpu
from brimful.specs.presets import find_preset
from brimful.specs.training import Training
from brimful.units import GIB

D8 = replace(
    find_preset("nanochat-d12").model,
    layers=8,
    heads=4,
    kv_heads=4,
    width=512,
    mlp_width=2048,
    value_tables=4,
)
BASE = Training(
    batch_size=4,
    sequence_tokens=1024,
    accumulation=8,
    dtype="bfloat16",
    compiled=True,
    optimizer="muon",
    framework=find_framework("nanochat"),
)


def test_its_parameters_are_those_it_logs_but_for_gates_and_lambdas() -> None:
    gates = 4 * 12 * 4 + 24 + 2 * 8 + 2
    assert parameters(D8) + gates == 125_829_354
    gates = 12 * 12 * 12 + 24 + 2 * 24 + 2
    assert parameters(find_preset("nanochat d24").model) + gates == 1_384_122_122


def test_tables_that_are_only_looked_up_in_take_two_bytes_a_number() -> None:
    tables, rest = table_parameters(D8), parameters(D8) - table_parameters(D8)
    assert tables == 32768 * 512 * 5
    assert weights_bytes(D8, BASE) == gradient_bytes(D8, BASE) == 2 * tables + 4 * rest
    matrices = 8 * 12 * 512 * 512
    assert optimizer_bytes(D8, BASE) == 2 * 2 * tables + 4 * matrices + 2 * 4 * (rest - matrices)
    plain = replace(BASE, framework=PLAIN)
    assert weights_bytes(D8, plain) == 4 * (tables + rest)
    assert weights_bytes(D8, replace(BASE, dtype="float16")) == 4 * (tables + rest), "a scaler needs fp32"


def test_its_peak_is_near_what_was_measured() -> None:
    found = estimate(D8, BASE, find_gpu("rtx-4070"), 0, correction=None).memory.allocated_bytes
    assert found.likely / GIB == pytest.approx((2.128 + 2.476) / 2, rel=0.02), "between its two phases"


def test_a_model_by_name_is_trained_by_its_own_code() -> None:
    reading = read_flags("nanochat-d20", {})
    assert reading.training.framework.name == "nanochat"
    assert read_flags("nanochat-d20", {"framework": "pytorch"}).training.framework.name == "pytorch"
