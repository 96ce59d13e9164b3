"""What swaps cost and reach, each figure beside what it is compared with: ``python -m numba_kvswap bench``."""
