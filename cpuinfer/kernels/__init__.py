"""Compiled kernels: SIMD vocabulary, one kernel an op, the thread team. Nothing here knows a format, a model or a tokenizer."""
