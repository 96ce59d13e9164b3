"""Random swaps, valid and invalid, on an engine and on the reference: ``python -m numba_kvswap check``."""

from __future__ import annotations

import dataclasses
import json
import random
import time
from dataclasses import dataclass

from tqdm import tqdm

from numba_kvswap.testing import Engine, SwapCase, compare, faults_of, make_case, snippet

# Two in five calls are wrong in some way: the order of checks deserves as much search as the copying.
_INVALID_SHARE = 0.4


@dataclass
class CheckReport:
    """`invalid_examples` counts the calls that the reference refused; `mismatches` those where the engine differed."""

    engine: str
    seed: int
    examples: int = 0
    invalid_examples: int = 0
    mismatches: int = 0
    seconds: float = 0.0

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), indent=2)


def check(engine: Engine, examples: int, seed: int) -> tuple[CheckReport, str]:
    """Make `examples` random calls; returns the counts, and a snippet reproducing the first mismatch, or "".

    The same seed makes the same calls.
    """
    report = CheckReport(engine.name, seed)
    generator = random.Random(seed)
    first_mismatch = ""
    started = time.perf_counter()
    for _ in tqdm(range(examples), unit=" swaps", disable=None):
        case = random_case(generator)
        comparison = compare(engine, case)
        report.examples += 1
        report.invalid_examples += comparison.refused
        if comparison.difference:
            report.mismatches += 1
            first_mismatch = first_mismatch or f"# {comparison.difference}\n{snippet(engine.name, case)}"
    report.seconds = time.perf_counter() - started
    return report, first_mismatch


def random_case(generator: random.Random) -> SwapCase:
    """A valid case, or one with a fault that its entry can have."""
    case = make_case(generator.randint)
    if generator.random() >= _INVALID_SHARE:
        return case
    return dataclasses.replace(case, fault=generator.choice(faults_of(case)))
