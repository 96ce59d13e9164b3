"""What planning and submitting a swap cost the host: ``python -m numba_kvswap bench``."""
