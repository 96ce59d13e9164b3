"""Judge an engine against the reference: cases, the engines, and their comparison.

`strategies` needs Hypothesis (the extra "test"); the rest does not.
"""

from numba_kvswap.testing.cases import LayerShape, SwapCase, make_case
from numba_kvswap.testing.conformance import Comparison, assert_conforms, compare, run_case, snippet
from numba_kvswap.testing.engines import CudaEngine, Engine, ReferenceEngine, SimulatedEngine, engine_named
from numba_kvswap.testing.faults import FAULTS, OP_FAULTS, SWAPPER_FAULTS, faults_of

__all__ = [
    "FAULTS",
    "OP_FAULTS",
    "SWAPPER_FAULTS",
    "Comparison",
    "CudaEngine",
    "Engine",
    "LayerShape",
    "ReferenceEngine",
    "SimulatedEngine",
    "SwapCase",
    "assert_conforms",
    "compare",
    "engine_named",
    "faults_of",
    "make_case",
    "run_case",
    "snippet",
]
