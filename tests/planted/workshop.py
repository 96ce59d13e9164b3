"""A copy of the package in which bugs are planted, one at a time, and the runs that must find them."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from bug import CHECK, CHECK_STATEFUL, Bug

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE, REFERENCE, TESTS = REPOSITORY / "numba_kvswap", REPOSITORY / "reference", REPOSITORY / "tests"
EXAMPLES, STEPS = 400, 15_000
_SECONDS_MAX = 300
_ANOTHER_PACKAGE = 99
# A bug so planted that the package does not even compile proves nothing.
_NOT_A_FINDING = ("SyntaxError", "ImportError", "NameError", "TypingError", "LoweringError")
# The package is installed in editable form too: make sure that the copy is what runs.
_LAUNCH = f"""
import runpy, sys
import numba_kvswap, numba_kvswap.reference
for module in (numba_kvswap, numba_kvswap.reference):
    if not module.__file__.startswith(sys.argv[1]):
        print(module.__file__, "was imported, not the copy in", sys.argv[1])
        sys.exit({_ANOTHER_PACKAGE})
sys.argv = sys.argv[2:]
runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
"""


@dataclass(frozen=True)
class Verdict:
    """What a run said: whether it failed as a run that found a bug does, its last lines, and how long it took."""

    caught: bool
    passed: bool
    said: str
    seconds: float


def occurrences(bug: Bug) -> int:
    return (PACKAGE / bug.file).read_text(encoding="utf-8").count(bug.old)


class Workshop:
    """The copy lies in `folder`, and compiled code beside it, so that only what a bug changes is compiled anew."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._cache = folder / "numba_cache"
        leave_out = shutil.ignore_patterns("__pycache__", "reference")  # which comes from where it stands, below
        shutil.copytree(PACKAGE, folder / "numba_kvswap", ignore=leave_out)
        shutil.copytree(REFERENCE, folder / "numba_kvswap" / "reference", ignore=leave_out)

    def run(self, by: str) -> Verdict:
        """Run `check`, or a file of tests, on the copy as it is."""
        return self._run(by, self._cache)

    def run_with(self, bug: Bug) -> Verdict:
        """Plant the bug, run what must find it, and take the bug out again."""
        file = self._folder / "numba_kvswap" / bug.file
        before, stamp = file.read_text(encoding="utf-8"), file.stat()
        if before.count(bug.old) != 1:
            raise ValueError(f"{bug.name}: its text stands {before.count(bug.old)} times in {bug.file}; expected once")
        # Numba's index of a file is thrown away when the file changes, so the bug gets a cache of its own.
        cache = self._folder / "numba_cache_with_bug"
        if self._cache.exists():
            shutil.copytree(self._cache, cache)
        file.write_text(before.replace(bug.old, bug.new), encoding="utf-8")
        try:
            return self._run(bug.caught_by, cache)
        finally:
            file.write_text(before, encoding="utf-8")
            os.utime(file, ns=(stamp.st_atime_ns, stamp.st_mtime_ns))
            shutil.rmtree(cache, ignore_errors=True)

    def _run(self, by: str, cache: Path) -> Verdict:
        started = time.perf_counter()
        done = subprocess.run(
            [sys.executable, "-c", _LAUNCH, str(self._folder), *_arguments(by)],
            cwd=self._folder,
            env=self._environment(cache),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=_SECONDS_MAX,
            check=False,
        )
        if done.returncode == _ANOTHER_PACKAGE:
            raise RuntimeError(done.stdout)
        seconds = time.perf_counter() - started
        return Verdict(_found(by, done), done.returncode == 0, _gist(by, done.stdout), seconds)

    def _environment(self, cache: Path) -> dict[str, str]:
        changed = {
            "PYTHONPATH": str(self._folder),
            # A .pyc is known by its source's size and second: a bug of the same length could hide behind one.
            "PYTHONDONTWRITEBYTECODE": "1",
            "NUMBA_CACHE_DIR": str(cache),
            "HYPOTHESIS_PROFILE": "planted",
            "PYTEST_ADDOPTS": "",
        }
        return {key: value for key, value in os.environ.items() if not key.startswith("PYTEST")} | changed


def _is_check(by: str) -> bool:
    return by.startswith(CHECK)


def _arguments(by: str) -> list[str]:
    if by == CHECK_STATEFUL:
        return ["numba_kvswap", "check", "--stateful", "--engine", "simulated", "--steps", str(STEPS), "--seed", "0"]
    if _is_check(by):
        transport = by.partition(" ")[2] or "auto"
        options = ["--engine", "simulated", "--transport", transport, "--examples", str(EXAMPLES), "--seed", "0"]
        return ["numba_kvswap", "check", *options]
    # Neither slow nor cuda: a bug must be caught by what every machine runs.
    options = ["-x", "-q", "-p", "no:cacheprovider", "-p", "no:xdist", "-m", "not slow and not cuda", "--no-header"]
    configuration = ["-c", str(REPOSITORY / "pyproject.toml"), "--rootdir", str(REPOSITORY), "--hypothesis-seed", "0"]
    return ["pytest", *options, *configuration, str(TESTS / by)]


def _found(by: str, done: subprocess.CompletedProcess[str]) -> bool:
    """Whether the run ended as one that found something: not by a mistake in its call, and not before it began."""
    if any(word in done.stdout for word in _NOT_A_FINDING):
        return False
    if _is_check(by):
        # 1 for a mismatch; 2 where the engine raised what no engine may.
        return done.returncode == 1 or (done.returncode == 2 and "numba-kvswap check: " in done.stdout)
    return done.returncode == 1 and " failed" in done.stdout


def _gist(by: str, output: str) -> str:
    """The line that says what was found."""
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    wanted = ("# ",) if _is_check(by) else ("FAILED",)
    return next((line for line in lines if line.startswith(wanted)), lines[-1] if lines else "")[:160]
