"""A copy of the package in which bugs are planted, one at a time, and the runs that must find them."""

from __future__ import annotations

import contextlib
import glob
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from bug import CHECK, CHECK_STATEFUL, Bug

REPOSITORY = Path(__file__).resolve().parents[2]
PACKAGE, REFERENCE, TESTS = REPOSITORY / "numba_kvswap", REPOSITORY / "reference", REPOSITORY / "tests"
EXAMPLES, STEPS = 400, 15_000
SECONDS_MAX = 300
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
    """The copy lies in `folder`, and what Numba compiles beside its files, so that only what a bug changes is compiled
    anew. Every run is made in a copy of that copy, of links: any number may go on at the same time."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._copies = count()
        self._warming = threading.Lock()
        leave_out = shutil.ignore_patterns("__pycache__", "reference")  # which comes from where it stands, below
        shutil.copytree(PACKAGE, self._base, ignore=leave_out)
        shutil.copytree(REFERENCE, self._base / "reference", ignore=leave_out)

    @property
    def _base(self) -> Path:
        return self._folder / "base" / "numba_kvswap"

    def run(self, by: str) -> Verdict:
        """Run `check`, or a file of tests, on the copy as it is. What it compiles is there for the runs after it."""
        with self._copied() as package:
            verdict = _run(by, package.parent)
            with self._warming:
                _keep_compiled(package, self._base)
        return verdict

    def run_with(self, bug: Bug) -> Verdict:
        """Plant the bug in a copy and run what must find it."""
        with self._copied() as package:
            file = package / bug.file
            before = file.read_text(encoding="utf-8")
            if before.count(bug.old) != 1:
                raise ValueError(
                    f"{bug.name}: its text stands {before.count(bug.old)} times in {bug.file}; expected once"
                )
            file.unlink()  # or the base, and all its copies, would have the bug
            file.write_text(before.replace(bug.old, bug.new), encoding="utf-8")
            return _run(bug.caught_by, package.parent)

    @contextlib.contextmanager
    def _copied(self) -> Iterator[Path]:
        folder = self._folder / f"copy_{next(self._copies)}"
        with self._warming:
            shutil.copytree(self._base, folder / "numba_kvswap", copy_function=os.link)
        try:
            yield folder / "numba_kvswap"
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _keep_compiled(source: Path, target: Path) -> None:
    """Of each function the compiled forms of whichever copy has more of them: all, since an index and what it names
    by number belong together."""
    for index in source.rglob("__pycache__/*.nbi"):
        ours = target / index.parent.relative_to(source)
        found, had = (list(folder.glob(f"{glob.escape(index.stem)}.*")) for folder in (index.parent, ours))
        if len(found) > len(had):
            ours.mkdir(exist_ok=True)
            for file in had:
                file.unlink()
            for file in found:
                os.link(file, ours / file.name)


def _run(by: str, folder: Path) -> Verdict:
    started = time.perf_counter()
    try:
        done = subprocess.run(
            [sys.executable, "-c", _LAUNCH, f"{folder}{os.sep}", *_arguments(by)],
            cwd=folder,
            env=_environment(folder),
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=SECONDS_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return Verdict(False, False, f"still running after {SECONDS_MAX} s", time.perf_counter() - started)
    if done.returncode == _ANOTHER_PACKAGE:
        raise RuntimeError(done.stdout)
    seconds = time.perf_counter() - started
    return Verdict(_found(by, done), done.returncode == 0, _gist(by, done.stdout), seconds)


def _environment(folder: Path) -> dict[str, str]:
    changed = {
        "PYTHONPATH": os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])]),
        # A .pyc is known by its source's size and second: a bug of the same length could hide behind one.
        "PYTHONDONTWRITEBYTECODE": "1",
        "HYPOTHESIS_PROFILE": "planted",
        "PYTEST_ADDOPTS": "",
    }
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("PYTEST", "NUMBA_CACHE"))}
    return kept | changed


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
