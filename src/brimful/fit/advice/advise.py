"""What to change: each fix is found by estimating again with it, and keeps the effective batch.

A run with 12 x 40 sequences is not the run with 16 x 32, so no fix here changes their product. The search
starts with the smallest set of changes that fits: one, then two together, then three.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

from brimful.configs.reading import FLAGS, Dialect
from brimful.language import Sentence, say
from brimful.specs.estimate import Estimate, Fix, Verdict
from brimful.specs.gpu import Gpu
from brimful.specs.training import Training

Predict = Callable[[Training], Estimate]
Enough = frozenset[Verdict]  # the verdicts a set of changes must reach

_SURE: Enough = frozenset({"fits"})
_LIKELY: Enough = frozenset({"fits", "at_risk"})

_CHUNKS = 8
_RANK, _FROZEN_BITS = 16, 4  # of an adapter, and of the frozen weights
MAX_BATCH = 1 << 20  # beyond any micro-batch a GPU can hold
_MAX_DIVISOR = 4096  # a batch no single GPU holds, so larger ones are not tried
_MAX_TOGETHER = 3  # most changes suggested at once
_MAX_SHOWN = 6
_GAIN = 0.985  # a step time factor worth mentioning: formulas are not more precise than this


@dataclass(frozen=True, slots=True)
class Move:
    """One change of Training, what it does and what it costs besides time."""

    fields: dict[str, Any]
    note: tuple[Sentence, ...]
    keeps_numerics: bool = True
    last_resort: bool = False


def fixes(training: Training, predict: Predict, gpu: Gpu, dialect: Dialect = FLAGS) -> tuple[Fix, ...]:
    """The smallest sets of changes that fit, surest and cheapest first; then what single changes save.

    If the config is at risk, only a set that surely fits is a fix. If it does not fit, a set that likely fits
    will do; if none of the smallest surely fits, the smallest that does are listed too.
    """
    before = predict(training)
    search = _Search(training, before, predict, gpu, dialect)
    if before.fits:
        found = search.fixes(_SURE)
    else:
        found = search.fixes(_LIKELY)
        if any(fix.fits for fix in found) and not any(fix.verdict in _SURE for fix in found):
            sure = [fix for fix in search.fixes(_SURE) if fix.verdict in _SURE]
            found = [*sorted(sure, key=_order)[:2], *found]
    return tuple(sorted(found, key=_order)[:_MAX_SHOWN])


@dataclass(frozen=True, slots=True)
class _Search:
    """Sets of changes to one training, tried by estimating again with them."""

    training: Training
    before: Estimate
    predict: Predict
    gpu: Gpu
    dialect: Dialect

    def fixes(self, enough: Enough) -> list[Fix]:
        """The smallest sets that are enough; if none is, what single changes save."""
        moves = savers(self.training, self.gpu, self.dialect)
        usual = [move for move in moves if not move.last_resort]
        exact = [move for move in usual if move.keeps_numerics]
        size, found = self._smallest(usual, enough, most=_MAX_TOGETHER)
        if not found:
            size, found = self._smallest(moves, enough, most=_MAX_TOGETHER)
        if size and not any(fix.keeps_numerics for fix in found):
            # One more change may keep the numerics.
            found += sorted(self._smallest(exact, enough, most=_MAX_TOGETHER + 1)[1], key=_order)[:2]
        if size == 1:
            # A pair may beat every single change: code that is both smaller and faster allows a larger batch.
            gains = [move for move in usual if move.fields.keys() & {"compiled", "attention"}]
            best = min(fix.step_time_factor for fix in found)
            pairs = self._tried(((SMALLER, move) for move in gains), enough)
            found += [fix for fix in pairs if fix.verdict in enough and fix.step_time_factor < _GAIN * best]
        else:
            singles = self._tried([(SMALLER,), *((move,) for move in usual)], enough)
            found += [fix for fix in singles if fix.verdict not in enough and fix.saves_bytes > 0]
        return found

    def _smallest(self, pool: Sequence[Move], enough: Enough, *, most: int) -> tuple[int, list[Fix]]:
        # If all of it together is not enough, no part of it is.
        if self.predict(_with(one_by_one(self.training), pool)).verdict in enough:
            for size in range(1, most + 1):
                tried = self._tried(_sets(pool, size), enough)
                found = [fix for fix in tried if fix.verdict in enough]
                if found:
                    return size, found
        return 0, []

    def _tried(self, sets: Iterable[tuple[Move, ...]], enough: Enough) -> list[Fix]:
        found = (self._try(chosen, enough) for chosen in sets)
        return [fix for fix in found if fix is not None]

    def _try(self, moves: tuple[Move, ...], enough: Enough) -> Fix | None:
        """The set as a fix; a smaller batch in it is the largest that is enough, or else one."""
        training, predict = self.training, self.predict
        if SMALLER not in moves:
            return self.fix(*moves)
        others = tuple(move for move in moves if move is not SMALLER)
        if any("in_backward" in move.fields for move in others):
            return None  # it needs every step to be one micro-step
        sizes = smaller_batches(training)
        changed = _with(training, others)
        if not sizes or (others and predict(changed).verdict in enough):
            return None  # no smaller batch, or a smaller set is enough
        size = largest_that(sizes, lambda size: predict(changed.in_batches_of(size)).verdict in enough)
        batch = training.in_batches_of(size)
        note = (say("fit.note_same_step", n=training.effective_batch),)
        fields = {"batch_size": batch.batch_size, "accumulation": batch.accumulation}
        return self.fix(Move(fields, note), *others)

    def fix(self, *moves: Move) -> Fix | None:
        """These changes and what they do; None if they change nothing."""
        training, before = self.training, self.before
        after = _with(training, moves)
        if after == training:
            return None
        estimate = self.predict(after)
        change, lines_alone = self.dialect.spell(training, after)
        note = [one for move in moves for one in move.note]
        if estimate.speed.peak_format != before.speed.peak_format:
            note.append(say("fit.note_mfu_of", dtype=estimate.speed.peak_format))
        if not lines_alone:
            note.append(say("fit.note_code_change", where=self.dialect.code))
        return Fix(
            change=change,
            training=after,
            fits=estimate.fits,
            verdict=estimate.verdict,
            saves_bytes=round(before.memory.needed_bytes.likely - estimate.memory.needed_bytes.likely),
            device_bytes=round(estimate.memory.needed_bytes.likely),
            step_time_factor=estimate.speed.step_s.likely / before.speed.step_s.likely,
            mfu=estimate.speed.mfu.likely,
            keeps_effective_batch=after.effective_batch == training.effective_batch,
            keeps_numerics=all(move.keeps_numerics for move in moves),
            config_only=lines_alone,
            note=tuple(note),
        )


def faster(training: Training, predict: Predict, gpu: Gpu, dialect: Dialect = FLAGS) -> tuple[Fix, ...]:
    """What raises MFU and still fits: each change alone, and all that help together."""
    search = _Search(training, predict(training), predict, gpu, dialect)
    found, helping = [], []
    for move in [*quickeners(training, gpu), *_larger_batches(training)]:
        fix = search.fix(move)
        if fix is not None and fix.fits and fix.step_time_factor < _GAIN:
            found.append(fix)
            helping.append(move)
    alone = sorted(_one_batch(found), key=lambda fix: fix.step_time_factor)[:_MAX_SHOWN]
    others = [move for move in helping if "batch_size" not in move.fields and move.keeps_numerics]
    if len(others) > 1:
        together = search.fix(*others)
        if together is not None and together.fits:
            alone.append(together)
    return tuple(alone)


def enough_gpus(training: Training, predict: Predict, gpu: Gpu, dialect: Dialect = FLAGS) -> int | None:
    """How many such cards, sharing weights and states, hold what no set of changes fits on one."""
    moves = [move for move in savers(training, gpu, dialect) if move.keeps_numerics and not move.last_resort]
    low = _with(one_by_one(training), [move for move in moves if "sharding" not in move.fields])
    if low.half and low.casts == "autocast":
        low = replace(low, casts="gather")
    for gpus in (2**power for power in range(1, 13)):
        many = replace(
            low, gpus=gpus * low.tensor * low.pipeline, sharding="zero3", shards=gpus, in_backward=False
        )
        if gpus > training.gpus and predict(many).fits:
            return many.gpus
    return None


def largest_batch(training: Training, predict: Predict, good: Sequence[Verdict]) -> int | None:
    """The largest batch_size of a micro-step with such a verdict, by bisection: memory grows with it."""

    def fits(batch_size: int) -> bool:
        return predict(replace(training, batch_size=batch_size)).verdict in good

    return largest_that(range(1, MAX_BATCH), fits) if fits(1) else None


# Placeholder for "the largest smaller batch that fits", which depends on the other changes.
SMALLER = Move({}, (say("fit.note_fewer_sequences"),))


def savers(training: Training, gpu: Gpu, dialect: Dialect) -> list[Move]:
    """Changes that may save memory, with what they require from the user."""
    t = training
    moves = []
    if not t.compiled and t.torch.compiles:
        note: tuple[Sentence, ...] = (say("fit.note_fuses_loss"), say("fit.note_warm_up"))
        moves.append(Move({"compiled": True}, note))
    if t.attention == "math" and t.torch.sdpa:
        moves.append(Move({"attention": "flash"}, (say("fit.note_no_scores"),)))
    moves += [*_loss_savers(t, dialect), *_recompute(t), *_shards(t)]
    if t.optimizer in ("adam", "adamw") and not t.in_backward:
        note = (say("fit.note_state_8_bits"), say("fit.note_needs_bitsandbytes"))
        moves.append(Move({"optimizer": "adam8bit"}, note, keeps_numerics=False))
    moves += _narrower(t, gpu)
    if t.accumulation == 1 and not t.in_backward and t.tuning == "full" and t.sharding == "none":
        note = (say("fit.note_gradient_dropped"), say("fit.note_no_clipping"))
        moves.append(Move({"in_backward": True}, note, keeps_numerics=False))
    return [*moves, *_last_resorts(t)]


def _loss_savers(t: Training, dialect: Dialect) -> list[Move]:
    if t.fused_loss or t.loss_chunks > 1:
        return []
    if "fused_loss" in dialect.says and "loss_chunks" not in dialect.says:
        note = (say("fit.note_logits_never_whole"), say("fit.note_needs_liger"))
        return [Move({"fused_loss": True}, note)]
    return [Move({"loss_chunks": _CHUNKS}, (say("fit.note_loss_slices", n=_CHUNKS),))]


def _recompute(t: Training) -> list[Move]:
    selective = Move({"checkpointing": "selective"}, (say("fit.note_cheap_parts_again"),))
    full = Move({"checkpointing": "full"}, (say("fit.note_layers_again"),))
    return {"none": [selective, full], "selective": [full], "full": []}[t.checkpointing]


def _shards(t: Training) -> list[Move]:
    order = ("none", "ddp", "zero1", "zero2", "zero3")
    notes = {
        "zero2": say("fit.note_states_spread"),
        "zero3": say("fit.note_weights_spread"),
    }
    if t.gpus == 1:
        return []
    rest = order[order.index(t.sharding) + 1 :]
    spread: dict[str, Any] = {"shards": max(1, t.gpus // (t.tensor * t.pipeline))}
    cast: tuple[Sentence, ...] = ()
    if t.half and t.casts == "autocast":
        spread["casts"] = "gather"
        cast = (say("fit.note_whole_layers_in", dtype=t.dtype),)
    return [
        Move({"sharding": kind, **spread}, (note, *cast), keeps_numerics=not cast)
        for kind, note in notes.items()
        if kind in rest
    ]


def _narrower(t: Training, gpu: Gpu) -> list[Move]:
    half = "bfloat16" if gpu.bf16 else "float16"
    if not t.half:
        note = (say("fit.note_multiplies_in", dtype=half), say("fit.note_half_activations"))
        return [Move({"dtype": half, "casts": "autocast"}, note, keeps_numerics=False)]
    if t.casts == "autocast" and gpu.bf16 and t.tuning == "full":
        fields = {"dtype": "bfloat16", "casts": "none"}
        return [Move(fields, (say("fit.note_all_bf16"),), keeps_numerics=False)]
    return []


def _last_resorts(t: Training) -> list[Move]:
    moves = []
    if t.tuning == "full":
        lora = {"tuning": "lora", "dtype": "bfloat16", "casts": "none", "rank": _RANK, "targets": 7}
        note = (say("fit.note_adapter", n=_RANK),)
        moves.append(Move(lora, note, keeps_numerics=False, last_resort=True))
        note = (say("fit.note_adapter_quantized", n=_FROZEN_BITS),)
        quantized = {**lora, "frozen_bits": _FROZEN_BITS}
        moves.append(Move(quantized, note, keeps_numerics=False, last_resort=True))
    elif not t.frozen_bits:
        note = (say("fit.note_frozen_bits", n=_FROZEN_BITS),)
        moves.append(Move({"frozen_bits": _FROZEN_BITS}, note, keeps_numerics=False, last_resort=True))
    if not t.offload_states:
        moves.append(Move({"offload_states": True}, (say("fit.note_offload"),), last_resort=True))
    return moves


def quickeners(training: Training, gpu: Gpu) -> list[Move]:
    """Changes that may save time, regardless of memory."""
    t = training
    moves = []
    if not t.compiled and t.torch.compiles:
        note: tuple[Sentence, ...] = (say("fit.note_fuses_kernels"), say("fit.note_warm_up"))
        moves.append(Move({"compiled": True}, note))
    if t.attention != "flash" and t.torch.sdpa:
        moves.append(Move({"attention": "flash"}, (say("fit.note_scores_on_chip"),)))
    if not t.half:
        half = "bfloat16" if gpu.bf16 else "float16"
        note = (say("fit.note_tensor_cores", dtype=half),)
        moves.append(Move({"dtype": half, "casts": "autocast"}, note, keeps_numerics=False))
        if not t.tf32 and "tf32" in gpu.dense_flops_per_s:
            moves.append(Move({"tf32": True}, (say("fit.note_tf32", n=10),), keeps_numerics=False))
    if t.dtype == "bfloat16" and not gpu.bf16:
        note = (say("fit.note_no_bf16"), say("fit.note_gradscaler"))
        moves.append(Move({"dtype": "float16"}, note, keeps_numerics=False))
    if t.checkpointing != "none":
        moves.append(Move({"checkpointing": "none"}, (say("fit.note_nothing_twice"),)))
    if t.checkpointing == "full":
        moves.append(Move({"checkpointing": "selective"}, (say("fit.note_cheap_parts_twice"),)))
    if t.loss_chunks > 1:
        moves.append(Move({"loss_chunks": 1}, (say("fit.note_logits_once"),)))
    if t.optimizer_kernel != "fused" and t.torch.foreach and t.optimizer in ("adam", "adamw"):
        moves.append(Move({"optimizer_kernel": "fused"}, (say("fit.note_fused_optimizer"),)))
    if t.sharding == "zero3":
        moves.append(Move({"sharding": "zero2"}, (say("fit.note_weights_whole"),)))
    return moves


def _larger_batches(training: Training) -> Iterator[Move]:
    """Every larger micro-batch that divides the sequences of a step."""
    whole = training.batch_size * training.accumulation
    for size in range(training.batch_size + 1, min(whole, 64 * training.batch_size, _MAX_DIVISOR) + 1):
        if whole % size == 0:
            fields = {"batch_size": size, "accumulation": whole // size}
            yield Move(fields, (say("fit.note_larger_batch"),))


def _one_batch(found: list[Fix]) -> list[Fix]:
    """Of several larger batches the smallest that is within a hundredth of the best."""
    batches = [fix for fix in found if len(fix.change) == 2 and "batch" in next(iter(fix.change))]
    rest = [fix for fix in found if fix not in batches]
    if not batches:
        return rest
    best = min(fix.step_time_factor for fix in batches)
    return [next(fix for fix in batches if fix.step_time_factor <= best + 0.01), *rest]


def _sets(moves: Sequence[Move], size: int) -> Iterator[tuple[Move, ...]]:
    """Sets of changes that do not touch the same setting; a smaller batch is one of them."""
    for chosen in combinations([SMALLER, *moves], size):
        names = [name for move in chosen for name in move.fields]
        if len(names) == len(set(names)):
            yield chosen


def smaller_batches(training: Training) -> list[int]:
    """Batch sizes below the current one that divide the sequences one GPU reads in a step, ascending."""
    whole = training.batch_size * training.accumulation
    start = min(training.batch_size - 1, _MAX_DIVISOR)
    return [size for size in range(1, start + 1) if whole % size == 0]


def largest_that(sizes: Sequence[int], fits: Callable[[int], bool]) -> int:
    """The largest of ascending sizes that fits, by bisection; the smallest if none does."""
    low, high = 0, len(sizes)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (middle, high) if fits(sizes[middle]) else (low, middle)
    return sizes[low]


def one_by_one(training: Training) -> Training:
    """The same step in the smallest micro-batches that divide it."""
    sizes = smaller_batches(training)
    return training.in_batches_of(sizes[0]) if sizes else training


def _with(training: Training, moves: Sequence[Move]) -> Training:
    fields = {name: value for move in moves for name, value in move.fields.items()}
    return replace(training, **fields)


def _order(fix: Fix) -> tuple[bool, bool, bool, float, int]:
    """Sets that fit first, then those that keep the numerics, the surest first, then by speed."""
    unsure = fix.verdict not in _SURE
    return (not fix.fits, not fix.keeps_numerics, unsure, fix.step_time_factor, len(fix.change))
