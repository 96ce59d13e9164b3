"""The kernels that move blocks: one body for GPU and host, compiled for either, launched by address."""
