from brimful.fit.count import (
    forward_flops_per_token,
    matmul_parameters,
    model_flops_per_token,
    parameters,
    recompute_flops,
    step_flops,
)
from tests.fit.builders import a_model, a_training


def test_gpt2_has_the_parameters_openai_published() -> None:
    assert parameters(a_model(vocab=50257, bias=True)) == 124_439_808
    assert parameters(a_model(layers=24, heads=16, width=1024, vocab=50257, bias=True)) == 354_823_168
    assert parameters(a_model(layers=48, heads=25, width=1600, vocab=50257, bias=True)) == 1_557_611_200


def test_nanogpt_from_scratch_has_no_biases_and_a_padded_vocabulary() -> None:
    assert parameters(a_model()) == 124_373_760


def test_an_untied_output_matrix_counts_twice_as_parameters_and_once_as_work() -> None:
    tied, untied = a_model(tied=True), a_model(tied=False)

    assert parameters(untied) - parameters(tied) == 50304 * 768
    assert matmul_parameters(untied) == matmul_parameters(tied)


def test_tables_that_are_only_looked_up_are_not_work() -> None:
    assert matmul_parameters(a_model(positions=1024)) == matmul_parameters(a_model(positions=8192))


def test_a_token_costs_6n_and_12ldt() -> None:
    model = a_model()
    n = 12 * 12 * 768**2 + 50304 * 768

    assert model_flops_per_token(model, sequence_tokens=1024) == 6 * n + 12 * 12 * 768 * 1024
    assert forward_flops_per_token(model, sequence_tokens=1024) * 3 == model_flops_per_token(
        model, sequence_tokens=1024
    )


def test_recomputation_is_not_useful_work() -> None:
    model = a_model()
    plain, checkpointed = a_training(), a_training(checkpointing="full")

    assert step_flops(model, plain) == step_flops(model, checkpointed)
    assert recompute_flops(model, plain) == 0
    assert 0.2 < recompute_flops(model, checkpointed) / step_flops(model, plain) < 1 / 3


def test_queries_that_share_keys_and_values_need_fewer_weights() -> None:
    shared = a_model(kv_heads=4)

    assert parameters(a_model()) - parameters(shared) == 12 * 2 * 768 * (768 - 4 * 64)
