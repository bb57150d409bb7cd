"""GPT on random tokens, the way nanoGPT's train.py is used: settings are globals, overruled by words.

python examples/nanogpt/train.py examples/nanogpt/train_fineweb.py --batch_size=8 --compile=False
brimful run -- python examples/nanogpt/train.py examples/nanogpt/train_fineweb.py

It saves out_dir/ckpt.pt at every evaluation, and --init_from=resume goes on from there. Batches are drawn by
step number, so a run that was stopped and resumed sees what it would have seen.
"""

import ast
import builtins
import contextlib
import sys
import time
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from train_gpt2 import Gpt

out_dir = "out"
eval_interval = 100
eval_iters = 2
log_interval = 1
always_save_checkpoint = True
init_from = "scratch"
dataset = "random"
gradient_accumulation_steps = 4
batch_size = 8
block_size = 256
vocab_size = 50304
n_layer = 6
n_head = 6
n_embd = 384
dropout = 0.0
bias = False
learning_rate = 6e-4
max_iters = 20
device = "cuda"
dtype = "bfloat16"
compile = False


def overrule():
    """Files of assignments and --key=value words, in their order; what is no setting above is refused."""
    for word in sys.argv[1:]:
        if not word.startswith("--"):
            exec(compile_file(word), globals())
            continue
        key, _, text = word[2:].partition("=")
        if key not in globals():
            raise ValueError(f"unknown config key: {key}")
        try:
            globals()[key] = ast.literal_eval(text)
        except (SyntaxError, ValueError):
            globals()[key] = text


def compile_file(name):
    return builtins.compile(Path(name).read_text(encoding="utf-8"), name, "exec")


def batch(step, micro):
    draw = torch.Generator().manual_seed(1000 * step + micro)
    ids = torch.randint(vocab_size, (batch_size, block_size + 1), generator=draw)
    return ids[:, :-1].contiguous().to(device), ids[:, 1:].contiguous().to(device)


@torch.no_grad()
def evaluate(model, half):
    model.eval()
    losses = []
    for n in range(eval_iters):
        with half:
            losses.append(model(*batch(-1, n))[1].item())
    model.train()
    return sum(losses) / len(losses)


def main():
    checkpoint = Path(out_dir) / "ckpt.pt"
    checkpoint.parent.mkdir(parents=True, exist_ok=True)
    torch.manual_seed(1337)
    model = Gpt(vocab=vocab_size, positions=block_size, layers=n_layer, heads=n_head, width=n_embd).to(device)
    adamw = torch.optim.AdamW(model.parameters(), lr=learning_rate, fused=device == "cuda")
    first = 0
    if init_from == "resume":
        saved = torch.load(checkpoint, map_location=device)
        model.load_state_dict(saved["model"])
        adamw.load_state_dict(saved["optimizer"])
        first = saved["iter_num"]
        saved = None
    run = torch.compile(model) if compile else model
    half = torch.autocast(device, getattr(torch, dtype)) if dtype != "float32" else contextlib.nullcontext()
    print(f"tokens per iteration will be: {gradient_accumulation_steps * batch_size * block_size:,}")
    for step in range(first, max_iters + 1):
        if step % eval_interval == 0 and step > first:
            print(f"step {step}: val loss {evaluate(run, half):.4f}")
            state = {"model": model.state_dict(), "optimizer": adamw.state_dict(), "iter_num": step}
            torch.save(state, checkpoint)
            print(f"saving checkpoint to {out_dir}")
        if step == max_iters:
            break
        began = time.perf_counter()
        for micro in range(gradient_accumulation_steps):
            with half:
                _, loss = run(*batch(step, micro))
            (loss / gradient_accumulation_steps).backward()
        adamw.step()
        adamw.zero_grad(set_to_none=True)
        if step % log_interval == 0:
            took_ms = 1000 * (time.perf_counter() - began)
            print(f"iter {step}: loss {loss.item():.4f}, time {took_ms:.2f}ms, mfu -100.00%", flush=True)
    print(f"done after {max_iters} iterations")


if __name__ == "__main__":
    overrule()
    main()
