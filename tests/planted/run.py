"""Plant every bug, and print what caught it and in how many seconds: ``python tests/planted/run.py [WORD]``.

Exits with 1 where a bug was not caught. A word picks the bugs whose names hold it.
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

from bug import CHECK
from bugs import BUGS
from workshop import Verdict, Workshop


def _print(name: str, by: str, verdict: Verdict, well: bool) -> None:
    mark = "ok  " if well else "MISS"
    print(f"{mark} {verdict.seconds:6.1f} s  {name}\n                {by}: {verdict.said}", flush=True)


def main(words: list[str]) -> int:
    chosen = [bug for bug in BUGS if all(word in bug.name for word in words)]
    missed = 0
    with tempfile.TemporaryDirectory() as folder:
        workshop = Workshop(Path(folder))
        for by in sorted({CHECK, *(bug.caught_by for bug in chosen)}):
            verdict = workshop.run(by)
            missed += not verdict.passed
            _print("(no bug)", by, verdict, verdict.passed)
        for bug in chosen:
            verdict = workshop.run_with(bug)
            missed += not verdict.caught
            _print(bug.name, bug.caught_by, verdict, verdict.caught)
    print(f"{len(chosen)} bugs planted, {missed} runs that should have ended otherwise")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
