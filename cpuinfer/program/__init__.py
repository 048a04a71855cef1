"""A decoder as a flat program: ops over buffers, built in plain Python, run by compiled kernels or by the numpy reference."""
