"""One measurement of llama.cpp through llama-cpp-python, for bench_peers.py: MODEL THREADS pp|tg COUNT DEPTH SEQUENCES -> tokens per second."""

from __future__ import annotations

import random
import sys
import time

import llama_cpp as llama

model_path, threads, kind, count, depth, sequences = sys.argv[1], int(sys.argv[2]), sys.argv[3], *map(int, sys.argv[4:7])
llama.llama_backend_init()
silent = llama.llama_log_callback(lambda *_: None)
llama.llama_log_set(silent, None)
model = llama.llama_model_load_from_file(model_path.encode(), llama.llama_model_default_params())
options = llama.llama_context_default_params()
options.n_ctx = max(512, sequences * (depth + count + 64))
options.n_batch, options.n_ubatch = 2048, 512
options.n_seq_max = sequences
options.n_threads = options.n_threads_batch = threads
context = llama.llama_init_from_model(model, options)
memory = llama.llama_get_memory(context)
n_vocab = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))


def decode(entries: list[tuple[int, int]]) -> None:
    """One batch of (sequence, position), random tokens, logits of the last of each sequence."""
    batch = llama.llama_batch_init(len(entries), 0, 1)
    last = {sequence: i for i, (sequence, _) in enumerate(entries)}
    for i, (sequence, position) in enumerate(entries):
        batch.token[i], batch.pos[i], batch.n_seq_id[i], batch.logits[i] = random.randrange(100, n_vocab - 100), position, 1, last[sequence] == i
        batch.seq_id[i][0] = sequence
    batch.n_tokens = len(entries)
    assert llama.llama_decode(context, batch) == 0
    llama.llama_synchronize(context)
    llama.llama_batch_free(batch)


def read(tokens: int, start: int, sequence: int = 0) -> None:
    for at in range(start, start + tokens, 512):
        decode([(sequence, p) for p in range(at, min(at + 512, start + tokens))])


def once() -> float:
    llama.llama_memory_clear(memory, True)
    for sequence in range(sequences):
        read(max(1, depth) if kind == "tg" else depth, 0, sequence)
    started = time.perf_counter()
    if kind == "pp":
        read(count, depth)
        return count / (time.perf_counter() - started)
    for step in range(count):
        decode([(sequence, max(1, depth) + step) for sequence in range(sequences)])
    return count * sequences / (time.perf_counter() - started)


once()
print(once())
