"""The table of layers that the kernels read; see body.py."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import accumulate

import numpy as np
import numpy.typing as npt

from numba_kvswap.layers import StartsAndStrides

#: What a warp has in hand at once. From 4 to 16 KiB it makes no difference on an H200.
CHUNK_BYTES = 8192


def layer_rows(
    source: StartsAndStrides, target: StartsAndStrides, block_bytes: Sequence[int]
) -> tuple[npt.NDArray[np.uint64], int]:
    """uint64 [layers, ROW_WORDS], and the chunks of one block over all layers."""
    chunks = [-(-size // CHUNK_BYTES) for size in block_bytes]
    before = [0, *accumulate(chunks)]
    rows = [(*a, *b, size, first) for a, b, size, first in zip(source, target, block_bytes, before, strict=False)]
    return np.array(rows, np.uint64), before[-1]
