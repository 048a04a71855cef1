"""The one engine behind chat, run, benchmarks and a server: sequences, scheduler, paged KV cache, sampling, the decode loop."""
