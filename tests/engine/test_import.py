"""Importing costs nothing: neither Numba nor CUDA is loaded before it is needed."""

from __future__ import annotations

import subprocess
import sys

import pytest

import numba_kvswap

HEAVY = "sorted({name.split('.')[0] for name in sys.modules} & {'numba', 'cuda', 'llvmlite', 'numpy', 'torch', 'tqdm'})"


def loaded_after(code: str) -> list[str]:
    done = subprocess.run(
        [sys.executable, "-c", f"import sys; {code}; print(*{HEAVY})"], capture_output=True, text=True, check=True
    )
    return done.stdout.split()


def test_importing_the_package_loads_nothing_heavy():
    assert loaded_after("import numba_kvswap") == []


def test_listing_its_names_loads_nothing_heavy():
    assert loaded_after("import numba_kvswap; dir(numba_kvswap); numba_kvswap.__version__") == []


def test_the_simulated_device_needs_neither_numba_nor_cuda():
    assert loaded_after("from numba_kvswap import SimulatedDevice; SimulatedDevice()") == ["numpy"]


@pytest.mark.parametrize("name", numba_kvswap.__all__)
def test_every_public_name_is_there(name):
    assert getattr(numba_kvswap, name) is not None
    assert name in dir(numba_kvswap)


def test_other_names_are_not():
    with pytest.raises(AttributeError, match="no attribute 'swap_pages'"):
        _ = numba_kvswap.swap_pages
