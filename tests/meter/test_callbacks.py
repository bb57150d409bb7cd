"""The callbacks, in the real trainers of the libraries they are for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from brimful.meter.samples import EndSample, RunSample, StepSample, read_samples
from tests.meter.clocks import Clock

torch: Any = pytest.importorskip("torch")
pytestmark = [
    pytest.mark.torch,
    # What the trainers say about a machine without a GPU, and about each other.
    pytest.mark.filterwarnings("ignore"),
]

ROWS, LENGTH, VOCAB = 48, 16, 96
PEAK = 50e9
LOOK_S = 0.001  # that pass at each look at the clock: each part takes as long as it has marks


@pytest.fixture(autouse=True)
def alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path))


def options(tmp_path: Path) -> dict[str, Any]:
    jsonl = tmp_path / "run.jsonl"
    return {"peak_flops_per_s": PEAK, "terminal_s": None, "jsonl": jsonl, "clock": Clock(LOOK_S)}


def a_gpt() -> Any:
    transformers = pytest.importorskip("transformers")
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=VOCAB, n_positions=LENGTH)
    return transformers.GPT2LMHeadModel(config)


def expected_flops(tokens: int) -> float:
    from brimful.configs.huggingface import read_shape
    from brimful.fit.count import model_flops_per_token

    shape = read_shape(a_gpt().config.to_dict(), name="here").model
    return tokens * model_flops_per_token(shape, sequence_tokens=LENGTH)


def read(path: Path) -> tuple[RunSample, list[StepSample], EndSample]:
    run, *steps, end = read_samples(path)
    assert isinstance(run, RunSample)
    assert isinstance(end, EndSample)
    assert all(isinstance(each, StepSample) for each in steps)
    return run, [each for each in steps if isinstance(each, StepSample)], end


def check(run: RunSample, steps: list[StepSample], end: EndSample, *, tokens: int) -> None:
    assert run.flops_source == "formula: gpt2"
    for each in steps:
        assert each.tokens == tokens
        assert each.micro_steps == 2
        assert each.mfu == pytest.approx(expected_flops(tokens) / each.step_s / PEAK, rel=0.01)
        assert min(each.data_s, each.forward_s, each.backward_s, each.optimizer_s) > 0
        assert sum(each.parts_s.values()) == pytest.approx(each.step_s)
        assert each.forward_s + each.backward_s > 0.2 * each.step_s
    assert end.pauses_s.keys() == {"evaluation", "checkpoint"}
    assert sum(each.pauses_s.get("evaluation", 0.0) for each in steps) == pytest.approx(
        end.pauses_s["evaluation"]
    )


def test_hugging_face_trainer(tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    import brimful

    tokens = torch.randint(0, VOCAB, (ROWS, LENGTH))
    rows = [{"input_ids": row, "labels": row} for row in tokens]
    arguments = transformers.TrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=4, gradient_accumulation_steps=2,
        max_steps=6, eval_strategy="steps", eval_steps=2, save_steps=2, report_to=[], use_cpu=True,
        disable_tqdm=True, logging_steps=100,
    )  # fmt: skip
    callback = brimful.TrainerMeter(**options(tmp_path))
    trainer = transformers.Trainer(
        model=a_gpt(), args=arguments, train_dataset=rows, eval_dataset=rows[:8], callbacks=[callback]
    )

    trainer.train()

    run, steps, end = read(tmp_path / "run.jsonl")
    assert [each.step for each in steps] == [1, 2, 3, 4, 5, 6]
    check(run, steps, end, tokens=2 * 4 * LENGTH)
    assert run.more == {"batch_size": 4, "accumulation": 2, "optimizer": str(arguments.optim)}


def test_lightning_trainer(tmp_path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning")
    import brimful

    class Module(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.gpt = a_gpt()

        def training_step(self, batch: Any, _index: int) -> Any:
            return self.gpt(input_ids=batch[0], labels=batch[0]).loss

        def validation_step(self, batch: Any, _index: int) -> None:
            self.gpt(input_ids=batch[0], labels=batch[0])

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters(), lr=1e-4)

    rows = torch.utils.data.TensorDataset(torch.randint(0, VOCAB, (ROWS, LENGTH)))
    callback = brimful.LightningMeter(**options(tmp_path))
    saver = lightning.pytorch.callbacks.ModelCheckpoint(dirpath=tmp_path / "out", every_n_train_steps=2)
    trainer = lightning.Trainer(
        max_steps=6, accumulate_grad_batches=2, accelerator="cpu", callbacks=[callback, saver], logger=False,
        enable_progress_bar=False, enable_model_summary=False, val_check_interval=4, limit_val_batches=2,
        default_root_dir=tmp_path,
    )  # fmt: skip

    trainer.fit(
        Module(),
        torch.utils.data.DataLoader(rows, batch_size=4),
        torch.utils.data.DataLoader(rows, batch_size=4),
    )

    run, steps, end = read(tmp_path / "run.jsonl")
    assert [each.step for each in steps] == [1, 2, 3, 4, 5, 6]
    check(run, steps, end, tokens=2 * 4 * LENGTH)


def test_a_lightning_run_that_fails_is_closed_with_its_error(tmp_path: Path) -> None:
    lightning: Any = pytest.importorskip("lightning")
    import brimful

    class Broken(lightning.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.layer = torch.nn.Linear(2, 1)

        def training_step(self, batch: Any, index: int) -> Any:
            if index == 2:
                raise ZeroDivisionError
            return self.layer(batch[0]).mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.SGD(self.parameters(), lr=1e-4)

    rows = torch.utils.data.TensorDataset(torch.randn(16, 2))
    callback = brimful.LightningMeter(terminal_s=None, jsonl=tmp_path / "run.jsonl")
    trainer = lightning.Trainer(
        max_steps=6, accelerator="cpu", callbacks=[callback], logger=False, enable_progress_bar=False,
        enable_model_summary=False, enable_checkpointing=False, default_root_dir=tmp_path,
    )  # fmt: skip
    with pytest.raises(ZeroDivisionError):
        trainer.fit(Broken(), torch.utils.data.DataLoader(rows, batch_size=2))
    _run, steps, end = read(tmp_path / "run.jsonl")
    assert (len(steps), end.error) == (2, "ZeroDivisionError")


def test_training_again_after_an_error_leaves_no_hooks_of_the_first(tmp_path: Path) -> None:
    """Trainer tells nobody of an error, and with auto_find_batch_size begins again after one."""
    transformers = pytest.importorskip("transformers")
    import brimful

    arguments = transformers.TrainingArguments(output_dir=str(tmp_path), report_to=[], use_cpu=True)
    model = torch.nn.Linear(2, 1)
    callback = brimful.TrainerMeter(terminal_s=None)
    callback.on_train_begin(arguments, None, None, model=model)
    callback.on_train_begin(arguments, None, None, model=model)

    assert len(model._forward_pre_hooks) == 1
    callback.on_train_end(arguments, None, None)
    assert not model._forward_pre_hooks


def test_a_batch_of_ones_own_kind_does_not_stop_lightning(tmp_path: Path) -> None:
    pytest.importorskip("lightning")
    import brimful
    from brimful.meter.loop import Meter

    callback = brimful.LightningMeter()
    callback.meter = Meter(torch.nn.Linear(2, 1), terminal_s=None, share=False)
    callback.on_train_batch_start(None, None, object(), 0)

    assert callback.meter.hooks.take().micro_steps == 1
