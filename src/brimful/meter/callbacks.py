"""A Meter for users who do not write the loop: Hugging Face's Trainer and Lightning's.

    Trainer(..., callbacks=[brimful.TrainerMeter()])
    lightning.Trainer(..., callbacks=[brimful.LightningMeter(tokens_per_step=...)])

Both take the options of `Meter`. The classes are built on request, because their bases are in optional
libraries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from brimful.meter.loop import Meter
from brimful.meter.sinks import needs


def TrainerMeter(**options: Any) -> Any:  # noqa: N802 - used like a class
    """A `TrainerCallback`. `meter` is its Meter during and after training."""
    with needs("TrainerMeter", "transformers"):
        from transformers import TrainerCallback
    return type("MeterCallback", (_HuggingFace, TrainerCallback), {})(options)


def LightningMeter(**options: Any) -> Any:  # noqa: N802 - used like a class
    """A Lightning `Callback`. `meter` is its Meter during and after training."""
    try:
        from lightning.pytorch.callbacks import Callback
    except ModuleNotFoundError:
        with needs("LightningMeter", "lightning"):
            from pytorch_lightning.callbacks import Callback
    return type("MeterCallback", (_Lightning, Callback), {})(options)


class _HuggingFace:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.meter: Meter | None = None
        self._aside = 0

    def on_train_begin(self, args: Any, _state: Any, _control: Any, model: Any = None, **_more: Any) -> None:
        facts = {
            "batch_size": args.per_device_train_batch_size,
            "accumulation": args.gradient_accumulation_steps,
            "optimizer": str(args.optim),
        }
        checkpointing = "full" if args.gradient_checkpointing else None
        if self.meter is not None:  # Trainer does not report that an error ended it; its hooks must not stay
            self.meter.close(error="unfinished")
        # Trainer fetches the batches of a step before it reports that the step begins.
        self.meter = Meter(model, **{"recompute": checkpointing, **facts, **self._options})
        self.meter.start()

    def on_step_end(self, _args: Any, state: Any, _control: Any, **_more: Any) -> None:
        if self.meter is not None:
            self.meter.step(state.global_step)
            self._aside = self.meter.timeline.at

    def on_evaluate(self, _args: Any, _state: Any, _control: Any, **_more: Any) -> None:
        self._mark_pause("evaluation")

    def on_save(self, _args: Any, _state: Any, _control: Any, **_more: Any) -> None:
        self._mark_pause("checkpoint")

    def on_train_end(self, _args: Any, _state: Any, _control: Any, **_more: Any) -> None:
        if self.meter is not None:
            self.meter.close()

    def _mark_pause(self, kind: str) -> None:
        """Everything since the step ended, or since the last such pause did."""
        if self.meter is not None:
            self._aside = self.meter.hooks.was(self._aside, kind)


class _Lightning:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self.meter: Meter | None = None
        self._pause: Any = None
        self._save: Any = None
        self._step = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        # `training_step` may call anything, so Lightning's own hooks say where forward ends.
        use = {"accumulation": trainer.accumulate_grad_batches, **self._options}
        self.meter = Meter(_with_config(pl_module), forward_hooks=False, **use)
        self._save, self._step = trainer.save_checkpoint, 0
        trainer.save_checkpoint = self._timed_save
        self.meter.start()

    def on_train_batch_start(self, _trainer: Any, _module: Any, batch: Any, _index: int) -> None:
        meter = self._metering()
        parts = batch.values() if isinstance(batch, Mapping) else batch
        meter.hooks.count(parts if isinstance(parts, Iterable) and not hasattr(batch, "shape") else [batch])
        meter.hooks.began("forward")

    def on_before_backward(self, _trainer: Any, _module: Any, _loss: Any) -> None:
        self._metering().hooks.began("backward")

    def on_after_backward(self, _trainer: Any, _module: Any) -> None:
        self._metering().hooks.ended()

    def on_train_batch_end(self, trainer: Any, _module: Any, *_more: Any) -> None:
        if trainer.global_step > self._step:  # otherwise one more micro-step
            self._step = trainer.global_step
            self._metering().step(self._step)

    def on_validation_start(self, _trainer: Any, _module: Any) -> None:
        if self.meter is not None:
            self._pause = self.meter.pause("evaluation")
            self._pause.__enter__()

    def on_validation_end(self, _trainer: Any, _module: Any) -> None:
        if self.meter is not None and self._pause is not None:
            self._pause.__exit__(None, None, None)
            self._pause = None

    def on_train_end(self, trainer: Any, _module: Any) -> None:
        self._close(trainer)

    def on_exception(self, trainer: Any, _module: Any, exception: BaseException) -> None:
        self._close(trainer, error=type(exception).__name__)

    def _metering(self) -> Meter:
        assert self.meter is not None
        return self.meter

    def _timed_save(self, *args: Any, **kwargs: Any) -> Any:
        with self._metering().pause("checkpoint"):
            return self._save(*args, **kwargs)

    def _close(self, trainer: Any, *, error: str = "") -> None:
        if self.meter is not None and self._save is not None:
            trainer.save_checkpoint, self._save = self._save, None
            self.meter.close(error=error)


def _with_config(module: Any) -> Any:
    """The network inside a LightningModule, if it is the only child with a config."""
    children = [child for child in module.children() if hasattr(child, "config")]
    return children[0] if len(children) == 1 and not hasattr(module, "config") else module
