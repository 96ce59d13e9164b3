"""What a swap means, as plain NumPy loops. The engine must give the same bytes or the same exception type."""

from numba_kvswap.reference.swap import merge_runs, swap_blocks, swap_cache_all_layers

__all__ = ["merge_runs", "swap_blocks", "swap_cache_all_layers"]
