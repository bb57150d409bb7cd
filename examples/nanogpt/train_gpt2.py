# GPT-2 of 124 million parameters with nanoGPT's own settings, on one card instead of eight.
#   brimful sweep examples/nanogpt/train_gpt2.py --gpu rtx-4070 --batch-size 1:24

out_dir = "out-gpt2"
dataset = "openwebtext"

# 12 sequences x 1024 tokens x 40 micro-steps = 491,520 tokens for each optimizer step
batch_size = 12
block_size = 1024
gradient_accumulation_steps = 40

n_layer = 12
n_head = 12
n_embd = 768
dropout = 0.0
bias = False

max_iters = 600_000
lr_decay_iters = 600_000
warmup_iters = 2000
learning_rate = 6e-4
min_lr = 6e-5
weight_decay = 1e-1

dtype = "bfloat16"
compile = True
