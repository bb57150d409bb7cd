"""A pipeline's stages: which layers each holds, and how many micro-batches it keeps in flight.

1F1B: stage r of p works ahead until the first gradient comes back, so it keeps the activations of
min(p - r, m) of the m micro-batches. Interleaved, each GPU has v pieces of the model and works ahead by
2·(p - r - 1) + (v - 1)·p + 1 of them. While the pipeline fills and drains, stages idle for p - 1 micro-steps,
or (p - 1)/v interleaved: a share (p - 1)/(v·m + p - 1) of the step.
Source: Narayanan et al., Efficient Large-Scale Language Model Training, arXiv:2104.04473, section 2.2;
Korthikanti et al., arXiv:2205.05198, section 4.2.3.
Leaves out: schedules that split the backward pass (zero bubble), and layers spread unevenly by hand.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from brimful.specs.model import Model
from brimful.specs.training import Training


@dataclass(frozen=True, slots=True)
class Stage:
    """One GPU's part of the model; all of it without a pipeline."""

    model: Model
    in_flight: float  # micro-batches whose activations it holds, a fraction if it has several pieces
    number: int = 0  # from 1; 0: there is no pipeline


def pipeline_stages(model: Model, training: Training) -> list[Stage]:
    """The stages that can need most: the first has tables and most in flight, the last the logits."""
    many = training.pipeline
    if many == 1:
        return [Stage(model, 1.0)]
    ranks = sorted({0, min(1, many - 1), many - 1})
    return [_stage(model, training, rank) for rank in ranks]


def _stage(model: Model, training: Training, rank: int) -> Stage:
    many, last = training.pipeline, training.pipeline - 1
    layers = -(-model.layers // many)
    if rank == last:
        layers = max(1, model.layers - last * layers) if model.layers > last * layers else 1
    experts = model.experts
    if experts is not None:
        experts = replace(experts, dense_layers=experts.dense_layers * layers // model.layers)
    part = replace(model, layers=layers, experts=experts, first=rank == 0, last=rank == last)
    return Stage(part, in_flight(training, rank), rank + 1)


def in_flight(training: Training, rank: int) -> float:
    """The most micro-batches whose activations this rank holds."""
    many, pieces, batches = training.pipeline, training.virtual_stages, training.accumulation
    if pieces == 1:
        return float(min(many - rank, batches))
    ahead = 2 * (many - rank - 1) + (pieces - 1) * many + 1
    return min(batches * pieces, ahead) / pieces


def bubble_steps(training: Training) -> float:
    """Micro-steps that a stage idles in one optimizer step."""
    return (training.pipeline - 1) / training.virtual_stages
