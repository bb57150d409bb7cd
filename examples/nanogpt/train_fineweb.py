# A GPT of 77 million parameters on FineWeb, for a single desktop card, in the manner of nanoGPT's configs.
# Try it before you train it:
#   brimful fit examples/nanogpt/train_fineweb.py --gpu rtx-4070 --other-mib 2100

out_dir = "out-fineweb"
dataset = "fineweb"
wandb_log = False

# 16 sequences x 1024 tokens x 32 micro-steps = 524,288 tokens for each optimizer step
batch_size = 16
block_size = 1024
gradient_accumulation_steps = 32

# the model: head width 48
n_layer = 12
n_head = 12
n_embd = 576
dropout = 0.0
bias = False

# 10 billion tokens
max_iters = 10_000_000_000 // (batch_size * block_size * gradient_accumulation_steps)
lr_decay_iters = max_iters
warmup_iters = 700
learning_rate = 6e-4
min_lr = learning_rate / 10
weight_decay = 1e-1

eval_interval = 1000
eval_iters = 200
log_interval = 10

dtype = "bfloat16"
compile = True
