"""torch.compile without a GPU: Dynamo, AOTAutograd and Inductor do their own work, up to the kernels.

Dynamo splits the graphs, AOTAutograd's min-cut chooses what is kept for the backward pass, Inductor fuses ops
and plans buffers, and the wrapper it generates is run on fake tensors (`wrapper`): an exact number, not a
bound. Ops between the graphs run as usual.

A graph that Inductor cannot plan here runs op by op: its temporaries give an upper bound, and without those
that are not the result of a library kernel (a matmul, attention, a convolution) a lower one. So do graphs
whose kernels are chosen by timing them (`max_autotune`). What Dynamo cannot trace, and every release of
PyTorch that is not in `PLANNED`, runs as if it were not compiled; its lower bound leaves out what the call
makes and does not return.
"""

from __future__ import annotations

import copy
import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.nn import functional
from torch.utils._pytree import tree_leaves

from brimful.language import say
from brimful.tracing.recorder import Recorder

Changes = list[tuple[Any, str, Any]]

PLANNED = ("2.13",)  # releases of PyTorch whose Inductor was tested here
PLANNED_RULE = "torch.compile: planned by Inductor"
UNFUSED_RULE = "torch.compile: saved set by min-cut, temporaries unfused"
_TIMED = ("max_autotune", "max_autotune_gemm", "max_autotune_pointwise")
# What Inductor would do on a GPU, run on one, or cache on disk.
_WITHOUT_A_GPU: dict[str, Any] = {
    **dict.fromkeys(_TIMED, False),
    "compile_threads": 1,
    "coordinate_descent_tuning": False,
    "fx_graph_cache": False,
    "fx_graph_remote_cache": False,
    "joint_graph_constant_folding": False,
    "triton.autotune_at_compile_time": False,
    "triton.cudagraphs": False,
}


def is_planned(release: str = torch.__version__) -> bool:
    return release.startswith(tuple(f"{each}." for each in PLANNED))


def compile_changes(recorder: Recorder, made: Changes) -> Changes:
    """`torch.compile` for `patched`, beside the changes already made."""
    if not is_planned():
        return [(torch, "compile", _compile(lambda model, **_: model, recorder))]
    from torch._dynamo import trace_rules
    from torch._dynamo.callback import CompilationCallbackHandler
    from torch.nn.modules import module

    # Our replacement of a PyTorch op is an op of the graph, not code to trace into.
    for target, _, function in made:
        if target in (torch, functional, torch._C._nn):
            torch.compiler.allow_in_graph(function)
    # Our own frames are not part of the user's program.
    here = Path(__file__).parent
    ours = [str(path) for folder in (here, here.parent) for path in folder.glob("*.py")]
    if not set(ours) <= set(trace_rules.SKIP_DIRS):
        trace_rules.SKIP_DIRS.extend(ours)
        trace_rules._recompile_re()
    compiling = CompilationCallbackHandler.install_callbacks

    @contextmanager
    def unseen(handler: Any, *args: Any) -> Iterator[None]:
        with _unrecorded(recorder), compiling(handler, *args):
            yield

    inductor = torch._TorchCompileInductorWrapper
    return [
        (torch, "compile", _compile(torch.compile, recorder)),
        (inductor, "__call__", functools.partialmethod(_planned, recorder)),
        (CompilationCallbackHandler, "install_callbacks", unseen),
        (module, "_has_any_global_hook", lambda: False),
        # `init_process_group` calls it. Dynamo would look up PyTorch's ops again by name, and find ours.
        (trace_rules, "clear_lru_cache", lambda: None),
    ]


def know_ops() -> None:
    """Have Dynamo look up PyTorch's ops by name while these names are still PyTorch's own."""
    from torch._dynamo.trace_rules import get_torch_obj_rule_map

    get_torch_obj_rule_map()


def forget_graphs(recorder: Recorder) -> None:
    """Dynamo caches what it compiled with the code: a later trace has another card, and another recorder."""
    if recorder.tape.rules[PLANNED_RULE] or recorder.tape.rules[UNFUSED_RULE]:
        torch._dynamo.reset()


def _compile(compiler: Callable[..., Any], recorder: Recorder) -> Callable[..., Any]:
    """`torch.compile` whose failures do not end a trace."""

    def compile_anything(model: Any = None, **how: Any) -> Any:
        if model is None:
            return functools.partial(compile_anything, **how)
        with warnings.catch_warnings(action="ignore"):  # PyTorch's, about its own imports
            compiled = compiler(model, **how)
        if how.get("disable"):
            return compiled
        if not isinstance(compiled, nn.Module):
            return _guarded(compiled, model, recorder)
        plain = model.forward if compiled is model else model
        compiled.forward = _guarded(compiled.forward, plain, recorder)
        return compiled

    return compile_anything


def _guarded(compiled: Callable[..., Any], plain: Any, recorder: Recorder) -> Callable[..., Any]:
    from torch._dynamo.exc import TorchDynamoException

    failed = compiled is plain or not is_planned()

    @functools.wraps(getattr(plain, "forward", plain))
    def called(*args: Any, **kwargs: Any) -> Any:
        nonlocal failed
        recorder.places.called_once = True
        if not failed and not recorder.paused:
            try:
                return compiled(*args, **kwargs)
            except TorchDynamoException as error:
                failed = True
                recorder.tape.note(say("tracing.note_not_compiled", kind=type(error).__name__))
        if not is_planned():
            recorder.tape.note(
                say(
                    "tracing.note_release_not_planned",
                    planned=", ".join(PLANNED),
                    release=str(torch.__version__),
                )
            )
        return _op_by_op(recorder, plain, args, kwargs)

    # For a compiled function that calls this one: it belongs to the same graph.
    called._torchdynamo_inline = plain  # type: ignore[attr-defined]
    return called


@contextmanager
def _unrecorded(recorder: Recorder) -> Iterator[None]:
    """While a compiler traces, its runs are not the GPU's, and our hooks are not part of the model."""
    from torch.nn.modules import module

    hooks = (
        module._global_forward_pre_hooks,
        module._global_forward_hooks,
        module._global_forward_hooks_always_called,
    )
    before = [dict(each) for each in hooks]
    for each in hooks:
        each.clear()
    recorder.paused += 1
    try:
        with warnings.catch_warnings(action="ignore"):  # the compiler's own, about the missing GPU
            yield
    finally:
        recorder.paused -= 1
        for each, held in zip(hooks, before, strict=True):
            each.update(held)


def _planned(wrapper: Any, recorder: Recorder, graph: Any, inputs: Any, **more: Any) -> Any:
    """What `torch.compile` does with one of Dynamo's graphs."""
    import torch._functorch.config
    from torch._dynamo.exc import RestartAnalysis
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx

    from brimful.tracing.compiling.wrapper import fake_inductor

    chosen = {**wrapper.config, **(more.get("config_patches") or {})}
    timed = any(chosen.get(name, getattr(config, name)) for name in _TIMED)
    if chosen.get("triton.cudagraphs", config.triton.cudagraphs):
        recorder.tape.note(say("tracing.note_cuda_graphs"))
    plan = functools.partial(_plan, recorder, timed)
    try:
        with (
            fake_inductor(recorder),
            config.patch(_WITHOUT_A_GPU),
            torch._functorch.config.patch(enable_autograd_cache=False, enable_remote_autograd_cache=False),
        ):
            return compile_fx(graph, inputs, inner_compile=plan, config_patches={**chosen, **_WITHOUT_A_GPU})
    except RestartAnalysis:  # Dynamo's own: it restarts this graph
        raise
    except Exception as error:  # noqa: BLE001  whatever Inductor raises, the trace goes on
        recorder.tape.note(say("tracing.note_not_compiled", kind=type(error).__name__))
        return lambda *args: _op_by_op(recorder, graph, args, {})


def _plan(recorder: Recorder, timed: bool, graph: Any, inputs: Any, **how: Any) -> Any:
    """One graph as Inductor compiles it; op by op if that fails or would be decided by timing."""
    from torch._inductor import config
    from torch._inductor.compile_fx import compile_fx_inner

    from brimful.tracing.compiling.wrapper import fake_inductor

    before = torch.fx.GraphModule(graph, copy.deepcopy(graph.graph))
    if timed:
        recorder.tape.note(say("tracing.note_autotuned"))
        return _unfused(recorder, before)
    try:
        # Once more: backward graphs may be compiled only at the first backward pass.
        with fake_inductor(recorder), config.patch(_WITHOUT_A_GPU):
            run = compile_fx_inner(graph, inputs, **how)
        _try(run, inputs)
    except Exception as error:  # noqa: BLE001  see above
        recorder.tape.note(say("tracing.note_unfused", kind=type(error).__name__))
        return _unfused(recorder, before)
    recorder.tape.note(say("tracing.note_compiled"))
    recorder.tape.rules[PLANNED_RULE] += 1
    return run


def _try(run: Callable[[Any], Any], inputs: Any) -> None:
    """Run once, unrecorded: a wrapper that fails later has freed its inputs, and nothing could replace it."""
    with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
        run([_example(each) for each in inputs])


def _example(value: Any) -> Any:
    """An input of the same size; symbolic sizes are those of the call being compiled."""
    if isinstance(value, torch.SymInt):
        return value.node.hint
    if not isinstance(value, torch.Tensor):
        return value
    size, stride = ([_example(each) for each in numbers] for numbers in (value.shape, value.stride()))
    return torch.empty_strided(size, stride, dtype=value.dtype, device=value.device)


def _unfused(recorder: Recorder, graph: Any) -> Callable[[Any], Any]:
    def run(args: Any) -> Any:
        before = len(recorder.tape.blocks)
        recorder.tape.rules[UNFUSED_RULE] += 1
        try:
            return torch.fx.Interpreter(graph).boxed_run(args)
        finally:
            for block in recorder.tape.blocks[before:]:
                if block.died is not None and not block.role:
                    block.role = "compiled_temporaries"

    run._boxed_call = True  # type: ignore[attr-defined]
    return run


def _op_by_op(recorder: Recorder, function: Callable[..., Any], args: Any, kwargs: Any) -> Any:
    """Not compiled. What the call makes and does not return is what a compiler may do without."""
    before = len(recorder.tape.blocks)
    result = function(*args, **kwargs)
    returned = {recorder.block_of(t) for t in tree_leaves(result) if isinstance(t, torch.Tensor)}
    for number, block in enumerate(recorder.tape.blocks[before:], before):
        if number not in returned and not block.role:
            block.role = "compiled_temporaries"
    return result
