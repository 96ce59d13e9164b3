"""Judge an engine against the reference: cases, the engines, and their comparison.

`strategies` needs Hypothesis (the extra "test"); the rest does not.
"""

from numba_kvswap.testing.cases import LayerShape, SwapCase, make_case
from numba_kvswap.testing.conformance import assert_conforms, compare, difference, refused, run_case, snippet
from numba_kvswap.testing.engines import CudaEngine, Engine, ReferenceEngine, SimulatedEngine, engine_named
from numba_kvswap.testing.faults import FAULTS, OP_FAULTS, SWAPPER_FAULTS

__all__ = [
    "FAULTS",
    "OP_FAULTS",
    "SWAPPER_FAULTS",
    "CudaEngine",
    "Engine",
    "LayerShape",
    "ReferenceEngine",
    "SimulatedEngine",
    "SwapCase",
    "assert_conforms",
    "compare",
    "difference",
    "engine_named",
    "make_case",
    "refused",
    "run_case",
    "snippet",
]
