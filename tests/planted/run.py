"""Plant every bug, and print what caught it and in how many seconds: ``python tests/planted/run.py [WORD ...]``.

A word picks the bugs whose names hold it, --file those planted in a file. Exits with 1 where a run ended otherwise
than it should: a bug not caught, or something caught where there is no bug.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path

from bug import CHECK, Bug
from bugs import BUGS
from workshop import Verdict, Workshop

_NO_BUG = "(no bug)"
_SLOWEST = 10


@dataclass(frozen=True)
class Run:
    """One run and what became of it. well: whether it ended as it should."""

    name: str
    file: str
    by: str
    verdict: Verdict
    well: bool

    def line(self) -> str:
        mark = "ok  " if self.well else "MISS"
        return f"{mark} {self.verdict.seconds:6.1f} s  {self.name}\n                {self.by}: {self.verdict.said}"

    def facts(self) -> dict[str, object]:
        verdict = self.verdict
        facts = {"name": self.name, "file": self.file, "by": self.by, "said": verdict.said}
        return {**facts, "seconds": round(verdict.seconds, 2), "well": self.well}


def main(arguments: Sequence[str] | None = None, bugs: Sequence[Bug] = BUGS) -> int:
    options = _parser().parse_args(arguments)
    chosen = chosen_of(bugs, options.words, options.file, options.part)
    if not chosen:
        print("no bug is named so; --file is a path in the package, as bugs.py has it", file=sys.stderr)
        return 2
    started = time.perf_counter()
    with tempfile.TemporaryDirectory() as folder:
        runs = all_runs(Workshop(Path(folder)), chosen, options.jobs)
    seconds = time.perf_counter() - started
    print(*summary(runs, seconds), sep="\n")
    if options.json:
        facts = {"seconds": round(seconds, 1), "jobs": options.jobs, "runs": [run.facts() for run in runs]}
        options.json.write_text(json.dumps(facts, indent=1) + "\n", encoding="utf-8")
    return 0 if all(run.well for run in runs) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("words", nargs="*", metavar="WORD")
    parser.add_argument("--file", metavar="FILE", help="of the package: swapper.py, or transports/ring.py")
    parser.add_argument("--part", type=_part, default=(1, 1), metavar="I/N", help="every Nth bug, from the Ith on")
    parser.add_argument("-j", dest="jobs", type=int, default=1, metavar="N", help="runs at the same time; default: 1")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what came of each there too")
    return parser


def _part(text: str) -> tuple[int, int]:
    part, _, parts = text.partition("/")
    if not (part.isdecimal() and parts.isdecimal() and 1 <= int(part) <= int(parts)):
        raise argparse.ArgumentTypeError(f"{text!r} came; expected 1/3, 2/3 or 3/3, say")
    return int(part), int(parts)


def chosen_of(bugs: Sequence[Bug], words: Sequence[str], file: str | None, part: tuple[int, int]) -> list[Bug]:
    """Those whose names hold all words, of one file, and of these every part[1]th."""
    named = [bug for bug in bugs if all(word in bug.name for word in words) and file in (None, bug.file)]
    return named[part[0] - 1 :: part[1]]


def all_runs(workshop: Workshop, chosen: Sequence[Bug], jobs: int) -> list[Run]:
    """Without a bug first, which also compiles: `check` alone, whose compiled code all others take, then the rest."""
    by = sorted({bug.caught_by for bug in chosen} - {CHECK})
    return [
        *_in_parallel(lambda each: _without_bug(workshop, each), [CHECK], 1),
        *_in_parallel(lambda each: _without_bug(workshop, each), by, jobs),
        *_in_parallel(lambda bug: _with_bug(workshop, bug), chosen, jobs),
    ]


def _in_parallel(make, items, jobs: int) -> list[Run]:
    runs: list[Run] = []
    with ThreadPoolExecutor(jobs) as threads:
        for done in as_completed([threads.submit(make, item) for item in items]):
            runs.append(done.result())
            print(runs[-1].line(), flush=True)
    return runs


def _without_bug(workshop: Workshop, by: str) -> Run:
    verdict = workshop.run(by)
    return Run(_NO_BUG, "", by, verdict, verdict.passed)


def _with_bug(workshop: Workshop, bug: Bug) -> Run:
    verdict = workshop.run_with(bug)
    return Run(bug.name, bug.file, bug.caught_by, verdict, verdict.caught)


def summary(runs: Sequence[Run], seconds: float) -> list[str]:
    """How many, the slowest, those that ended otherwise than they should, and seconds in all."""
    planted = [run for run in runs if run.name != _NO_BUG]
    slowest = sorted(planted, key=lambda run: -run.verdict.seconds)[:_SLOWEST]
    survived = [run for run in planted if not run.well]
    broken = [run for run in runs if run.name == _NO_BUG and not run.well]
    return [
        "",
        f"{len(planted)} bugs planted, {len(planted) - len(survived)} caught, {seconds:.0f} s in all; the slowest:",
        *(f"{run.verdict.seconds:6.1f} s  {run.name}" for run in slowest),
        *(f"survived: {run.name} ({run.file}), {run.by}: {run.verdict.said}" for run in survived),
        *(f"failed without a bug: {run.by}: {run.verdict.said}" for run in broken),
    ]


if __name__ == "__main__":
    sys.exit(main())
