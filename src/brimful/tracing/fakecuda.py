"""A process in which PyTorch believes in one GPU: the card's answers, and what a script asks of it.

Everything except the shim itself is restored at the end. Answers about memory come from the tape, so a script
that prints `torch.cuda.max_memory_allocated()` prints what the GPU would have reported.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.utils._device import DeviceContext

from brimful.tracing import attention
from brimful.tracing.cuda_device import CudaDevice
from brimful.tracing.ranks import rank_changes
from brimful.tracing.recorder import Recorder
from brimful.tracing.values import is_real, made_up_array, shape_changes


@contextmanager
def patched(changes: list[tuple[Any, str, Any]]) -> Iterator[None]:
    """Set attributes, and restore them in reverse order."""
    missing = object()
    before: list[tuple[Any, str, Any]] = []
    try:
        for target, name, value in changes:
            before.append((target, name, target.__dict__.get(name, missing)))
            setattr(target, name, value)
        yield
    finally:
        for target, name, value in reversed(before):
            if value is missing:
                delattr(target, name)
            else:
                setattr(target, name, value)


def always(value: Any) -> Callable[..., Any]:
    return lambda *_, **__: value


def fake_cuda(card: CudaDevice, recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """All changes to PyTorch's own modules, for `patched`."""
    return [
        *_device_changes(card),
        *_stream_changes(),
        *_memory_changes(card, recorder),
        *_data_changes(recorder),
        *rank_changes(recorder),
        *_attention_changes(card, recorder),
        *_amp_changes(recorder),
        *_optimizer_changes(),
        *_making_changes(recorder),
        *shape_changes(recorder.tape, recorder.places.line),
    ]


def _device_changes(card: CudaDevice) -> list[tuple[Any, str, Any]]:
    gpu = card.gpu
    properties = types.SimpleNamespace(
        name=gpu.title, major=card.capability[0], minor=card.capability[1], total_memory=gpu.memory_bytes,
        multi_processor_count=gpu.processors, max_threads_per_multi_processor=card.threads_per_processor,
        warp_size=32, max_threads_per_block=1024, regs_per_multiprocessor=65536, L2_cache_size=32 << 20,
        shared_memory_per_block=49152, shared_memory_per_block_optin=101376,
        shared_memory_per_multiprocessor=102400, gcnArchName="", is_integrated=0, is_multi_gpu_board=0,
        uuid="GPU-fake", pci_bus_id=0, pci_device_id=0,
    )  # fmt: skip
    state = torch.zeros(16, dtype=torch.uint8)
    answers: dict[str, Any] = {
        "is_available": True, "is_initialized": True, "device_count": 1, "current_device": 0,
        "set_device": None, "synchronize": None, "init": None, "_lazy_init": None, "ipc_collect": None,
        "get_device_properties": properties, "get_device_name": gpu.title,
        "get_device_capability": card.capability, "is_bf16_supported": gpu.bf16,
        "is_tf32_supported": card.capability >= (8, 0), "can_device_access_peer": False,
        "get_arch_list": [f"sm_{card.capability[0]}{card.capability[1]}"],
        "get_rng_state": state, "get_rng_state_all": [state], "set_rng_state": None,
        "set_rng_state_all": None, "initial_seed": 0,
        "manual_seed": None, "manual_seed_all": None, "seed": None, "seed_all": None,
        "_exchange_device": 0, "_maybe_exchange_device": 0, "_is_in_bad_fork": False, "_sleep": None,
        "current_blas_handle": 0, "is_current_stream_capturing": False,
        "utilization": 100, "temperature": 50, "power_draw": 0, "clock_rate": 0,
    }  # fmt: skip
    changes = [(torch.cuda, name, always(answer)) for name, answer in answers.items()]
    # Seeding the GPU queues calls until it is initialised, which never happens here.
    changes.append((torch.cuda, "_lazy_call", always(None)))
    device = torch.device("cuda", 0)
    accelerator: dict[str, Any] = {
        "is_available": True, "current_device_index": 0, "current_device_idx": 0, "device_count": 1,
        "synchronize": None, "current_accelerator": torch.device("cuda"), "set_device_index": None,
    }  # fmt: skip
    changes += [(torch.accelerator, name, always(answer)) for name, answer in accelerator.items()]
    changes.append((torch.accelerator, "current_stream", lambda *_: torch.Stream(device="cpu")))
    changes.append((torch._C, "_accelerator_getAccelerator", always(device)))
    return changes


class FakeStream:
    """Work on any stream is recorded as if it were on one: streams change timing, seldom memory."""

    def __init__(self, *_: Any, **__: Any) -> None:
        self.device = torch.device("cuda", 0)
        self.device_index = self.stream_id = self.cuda_stream = self.priority = 0

    def __enter__(self) -> FakeStream:
        return self

    def record_event(self, event: Any = None) -> Any:
        return event or FakeEvent()

    __exit__ = wait_stream = wait_event = synchronize = always(None)
    query = always(True)


class FakeEvent:
    """An event that has happened. The time between two is an invented millisecond."""

    __init__ = record = wait = synchronize = always(None)
    query = always(True)
    elapsed_time = always(1.0)


def _stream_changes() -> list[tuple[Any, str, Any]]:
    one = FakeStream()
    nvtx = torch.cuda.nvtx
    return [
        (torch.cuda, "Stream", FakeStream),
        (torch.cuda, "Event", FakeEvent),
        (torch.cuda, "current_stream", always(one)),
        (torch.cuda, "default_stream", always(one)),
        (torch.cuda, "set_stream", always(None)),
        (torch.cuda, "stream", lambda *_: nullcontext(one)),
        *[
            (nvtx, name, always(0))
            for name in ("range_push", "range_pop", "mark", "range_start", "range_end")
        ],
    ]


def _memory_changes(card: CudaDevice, recorder: Recorder) -> list[tuple[Any, str, Any]]:
    tape = recorder.tape
    total = card.gpu.memory_bytes

    functions: dict[str, Callable[..., Any]] = {
        "memory_allocated": lambda *_, **__: tape.allocator.allocated_bytes,
        "max_memory_allocated": lambda *_, **__: tape.allocator.peak_allocated_bytes,
        "memory_reserved": lambda *_, **__: tape.allocator.reserved_bytes,
        "max_memory_reserved": lambda *_, **__: tape.allocator.peak_reserved_bytes,
        "mem_get_info": lambda *_, **__: (max(0, total - tape.allocator.reserved_bytes), total),
        "empty_cache": lambda *_, **__: tape.empty_cache(),
        "memory_stats": lambda *_, **__: _stats(recorder),
        "memory_summary": lambda *_, **__: "traced without a GPU by brimful",
        "memory_snapshot": lambda *_, **__: [],
        "_snapshot": lambda *_, **__: {"segments": [], "device_traces": []},
    }
    for name in ("memory_reserved", "max_memory_reserved"):
        functions[name.replace("reserved", "cached")] = functions[name]
    resets = ("reset_peak_memory_stats", "reset_max_memory_allocated", "reset_max_memory_cached")
    functions |= dict.fromkeys(resets, lambda *_, **__: tape.reset_peaks())
    silent = (
        "reset_accumulated_memory_stats", "_record_memory_history", "_dump_snapshot",
    )  # fmt: skip
    functions |= dict.fromkeys(silent, always(None))

    def set_fraction(fraction: float, *_: Any, **__: Any) -> None:
        tape.memory_fraction = fraction

    functions["set_per_process_memory_fraction"] = set_fraction
    changes = [
        (place, name, function)
        for name, function in functions.items()
        for place in (torch.cuda, torch.cuda.memory)
    ]
    functions["get_memory_info"] = functions["mem_get_info"]
    accelerator = torch.accelerator
    return changes + [(accelerator, name, f) for name, f in functions.items() if hasattr(accelerator, name)]


def _stats(recorder: Recorder) -> dict[str, int]:
    allocator = recorder.tape.allocator
    found: dict[str, int] = {"num_alloc_retries": 0, "num_ooms": 0}
    for name, now, peak in (
        ("allocated_bytes", allocator.allocated_bytes, allocator.peak_allocated_bytes),
        ("reserved_bytes", allocator.reserved_bytes, allocator.peak_reserved_bytes),
        ("active_bytes", allocator.allocated_bytes, allocator.peak_allocated_bytes),
        ("requested_bytes", allocator.requested_bytes, allocator.peak_requested_bytes),
    ):
        found[f"{name}.all.current"], found[f"{name}.all.peak"] = now, peak
    return found


_DATA: Any = torch._C.TensorBase.__dict__["data"]


def _set_data(tensor: Any, data: Any) -> None:
    """`tensor.data = tensor.data.cuda()` moves a parameter; a fake one's device is an attribute."""
    _DATA.__set__(tensor, data)
    if isinstance(data, FakeTensor):
        tensor.fake_device = data.fake_device


def tensor_changes(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """Parts of PyTorch that access a tensor's memory, which a fake one does not have."""
    storage_resize = torch.UntypedStorage.resize_

    def resize(storage: Any, size: int) -> Any:
        result = storage_resize(storage, size)
        if recorder.knows(storage):
            recorder.resized(storage, recorder.places.of("resize_", backward=False, setup=False))
        return result

    numpy = torch.Tensor.numpy

    def to_numpy(tensor: Any, *args: Any, **kwargs: Any) -> Any:
        if not hasattr(tensor, "fake_mode"):
            return numpy(tensor, *args, **kwargs)
        return made_up_array(tensor, recorder.tape, recorder.places.line)

    def written_out(tensor: Any, spec: str) -> str:
        # PyTorch formats a number only for exactly its own class: f"{loss:.3f}" would fail on a fake one.
        number = hasattr(tensor, "fake_mode") and tensor.dim() == 0
        return str(tensor.item().__format__(spec) if number else plain_format(tensor, spec))

    def not_saved(*_: Any, **__: Any) -> None:
        # Invented numbers must never replace a real checkpoint.
        recorder.tape.rules["torch.save: nothing is written"] += 1

    def pinned(tensor: Any, *_: Any) -> Any:
        recorder.tape.rules["pin_memory"] += 1
        return tensor

    plain_format = torch.Tensor.__format__
    return [
        (torch, "save", not_saved),
        (torch.serialization, "save", not_saved),
        (torch.Tensor, "__format__", written_out),
        # Making a CUDA tensor from numbers must begin on the CPU: there is no device.
        (FakeTensorMode, "avoid_device_init", property(lambda _: True)),
        # Module.to() swaps fake parameters in place and refuses while they have weak references; only we have
        # some.
        (torch.utils, "weakref", types.SimpleNamespace(getweakrefs=lambda _: [])),
        # Copying a tensor deeply asks whether it has its own memory.
        (FakeTensor, "data_ptr", always(0)),
        (FakeTensor, "data", property(_DATA.__get__, _set_data)),
        (torch.UntypedStorage, "resize_", resize),
        (torch.Tensor, "numpy", to_numpy),
        (torch.Tensor, "record_stream", always(None)),
        (torch.Tensor, "pin_memory", pinned),
    ]


def _attention_changes(card: CudaDevice, recorder: Recorder) -> list[tuple[Any, str, Any]]:
    ours = attention.replacement(card, torch._C._nn.scaled_dot_product_attention, recorder.tape.rules)
    return [
        (torch.nn.functional, "scaled_dot_product_attention", ours),
        (torch._C._nn, "scaled_dot_product_attention", ours),
    ]


def _amp_changes(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """Autocast and GradScaler disable themselves if they find no GPU."""
    from torch.cuda.amp import common

    def step(scaler: Any, optimizer: Any, _: Any, *args: Any, **kwargs: Any) -> Any:
        # The scaler asks whether any gradient overflowed. No value is known; a run that works finds none.
        recorder.tape.rules["GradScaler: no overflow"] += 1
        return optimizer.step(*args, **kwargs)

    return [
        (torch.backends.cudnn, "is_acceptable", always(False)),
        (common, "amp_definitely_not_available", always(False)),
        (torch.amp.GradScaler, "_maybe_opt_step", step),
    ]


def _optimizer_changes() -> list[tuple[Any, str, Any]]:
    """On a GPU, optimizers and gradient clipping process all tensors at once unless one is a subclass."""
    from torch.optim import optimizer
    from torch.utils import _foreach_utils

    name = "_foreach_supported_types"
    return [(place, name, [*getattr(place, name), FakeTensor]) for place in (optimizer, _foreach_utils)]


def _making_changes(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """Tensors made from numbers, on any thread, and parameters, which are always fake."""
    makers = {name: getattr(torch, name) for name in ("tensor", "as_tensor")}

    def on_cpu_first(make: Callable[..., Any]) -> Callable[..., Any]:
        def made(
            data: Any, *args: Any, device: Any = None, requires_grad: bool = False, **kwargs: Any
        ) -> Any:
            where = torch.device(device) if device is not None else _default_device()
            # A tracing compiler handles this itself, and would run our copy for real.
            if recorder.paused or isinstance(data, torch.Tensor) or where.type != "cuda":
                more = {"requires_grad": True} if requires_grad else {}
                return make(_known(data), *args, device=device, **more, **kwargs)
            tensor = make(_known(data), *args, device="cpu", **kwargs).to(where)
            return tensor.requires_grad_() if requires_grad else tensor

        return made

    parameter = torch.nn.Parameter
    plain = parameter.__new__

    def new_parameter(cls: Any, data: Any = None, *args: Any, **kwargs: Any) -> Any:
        mode = torch._C._get_dispatch_mode(torch._C._TorchDispatchModeKey.FAKE)
        if cls is parameter and mode is not None and type(data) is torch.Tensor and is_real(data):
            data = mode.from_tensor(data)
        return plain(cls, data, *args, **kwargs)

    return [
        *((torch, name, on_cpu_first(make)) for name, make in makers.items()),
        (parameter, "__new__", new_parameter),
    ]


def _default_device() -> torch.device:
    """Like torch.get_default_device(), which makes a tensor to find out and would recurse forever here."""
    modes = reversed(torch.overrides._get_current_function_mode_stack())
    found = next((mode for mode in modes if isinstance(mode, DeviceContext)), None)
    found = found or getattr(torch._GLOBAL_DEVICE_CONTEXT, "device_context", None)
    return found.device if found is not None else torch.device("cpu")


def _known(data: Any) -> Any:
    """Numbers instead of fake tensors in a list: PyTorch would read each from memory that does not exist."""
    if isinstance(data, (list, tuple)) and any(isinstance(each, (list, tuple, FakeTensor)) for each in data):
        return [each.tolist() if isinstance(each, FakeTensor) else _known(each) for each in data]
    return data


def _data_changes(recorder: Recorder) -> list[tuple[Any, str, Any]]:
    """Batches are loaded for real, in this process: workers cannot pass fake tensors."""
    from torch.utils._python_dispatch import _disable_current_modes
    from torch.utils.data import DataLoader
    from torch.utils.data.dataloader import _BaseDataLoaderIter

    make = DataLoader.__init__
    workers = (
        *("num_workers", "persistent_workers", "prefetch_factor", "pin_memory", "timeout"),
        "multiprocessing_context",
    )

    def init(loader: Any, *args: Any, **kwargs: Any) -> None:
        if kwargs.get("num_workers") or kwargs.get("pin_memory"):
            recorder.tape.rules["data loader: in this process"] += 1
        make(loader, *args, **{name: value for name, value in kwargs.items() if name not in workers})

    def for_real(method: Callable[[Any], Any]) -> Callable[[Any], Any]:
        def called(of: Any) -> Any:
            with _disable_current_modes():
                return method(of)

        return called

    return [
        (DataLoader, "__init__", init),
        (DataLoader, "__iter__", for_real(DataLoader.__iter__)),
        (_BaseDataLoaderIter, "__next__", for_real(_BaseDataLoaderIter.__next__)),
    ]
