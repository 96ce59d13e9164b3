"""The command line: ``python -m numba_kvswap info | check | calibrate | replay | soak | bench | plot``."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from numba_kvswap.driver import KVSwapDriverError, cuda_available
from numba_kvswap.files import read_plain, write_whole
from numba_kvswap.replay.free_blocks import HOST_SLOTS
from numba_kvswap.replay.models import MODELS

if TYPE_CHECKING:
    from numba_kvswap.replay.report import ReplayReport

_MADE_REQUESTS = 2000


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit status: 0, 1 for mismatches, 2 for a mistake in the call."""
    options = _parser().parse_args(arguments)
    try:
        with _writable(getattr(options, "json", None)):
            status: int = options.run(options)
    except (ValueError, OSError, ImportError, MemoryError, KVSwapDriverError) as error:
        print(f"numba-kvswap {options.command}: {error}", file=sys.stderr)
        return 2
    return status


@contextmanager
def _writable(file: Path | None) -> Iterator[None]:
    """A path that cannot be written is better known before the work than after. What was made to know it, and was not
    written to, goes again."""
    if file is None:
        yield
        return
    if file.is_dir():
        raise IsADirectoryError(f"--json is {str(file)!r}, a folder; expected a file")
    made = not file.exists()
    file.touch()
    try:
        yield
    finally:
        if made and file.is_file() and file.stat().st_size == 0:
            file.unlink()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="numba-kvswap", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    info = commands.add_parser("info", help="what this machine offers, and what is missing")
    info.set_defaults(run=_info)
    _add_check(commands.add_parser("check", help="random swaps against the reference"))
    _add_calibrate(commands.add_parser("calibrate", help="measure anew what each transport costs on this machine"))
    _add_replay(commands.add_parser("replay", help="a serving trace through the engine, every block verified"))
    _add_soak(commands.add_parser("soak", help="replays on the simulated device while driver calls fail by chance"))
    _add_bench(commands.add_parser("bench", help="host time, and every transport beside the link and a loop in C"))
    _add_plot(commands.add_parser("plot", help="pictures of what bench wrote"))
    return parser


def _add_engine_and_json(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--engine", choices=("simulated", "cuda"), default=None, help="default: cuda where there is a GPU"
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")


def _add_check(parser: argparse.ArgumentParser) -> None:
    from numba_kvswap.transports.named import TRANSPORTS

    parser.add_argument("--examples", type=_count, metavar="N", help="how many swaps; default: 2000")
    parser.add_argument(
        "--stateful",
        action="store_true",
        help="instead: whole histories of swaps, compute, waits and faults on several streams and caches",
    )
    parser.add_argument("--steps", type=_count, metavar="N", help="of histories, in all; default: 10000")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument(
        "--transport",
        choices=("auto", *TRANSPORTS),
        help="default: auto; of histories: drawn for each Swapper",
    )
    _add_engine_and_json(parser)
    parser.set_defaults(run=_check)


def _add_calibrate(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the costs there too")
    parser.set_defaults(run=_calibrate)


def _add_replay(parser: argparse.ArgumentParser) -> None:
    from numba_kvswap.transports.named import TRANSPORTS

    parser.add_argument("trace", nargs="?", type=Path, metavar="TRACE.jsonl", help="default: one made from --seed")
    parser.add_argument(
        "--requests", type=_count, metavar="N", help=f"stop after N; default: the whole trace, or {_MADE_REQUESTS} made"
    )
    parser.add_argument("--device-blocks", type=_count, default=1000, metavar="G", help="default: 1000")
    parser.add_argument("--host-blocks", type=_count, default=8000, metavar="H", help="default: 8000")
    parser.add_argument(
        "--host-slots",
        choices=HOST_SLOTS,
        default="contiguous",
        help="which free host blocks are used: those that lie together, or the last freed first; default: contiguous",
    )
    parser.add_argument(
        "--host-headroom",
        type=_percent,
        default=0.0,
        metavar="PERCENT",
        help="so much of the host stays free: longer runs, fewer hits; default: 0",
    )
    parser.add_argument(
        "--transport",
        type=_names,
        action="extend",
        metavar="NAME[,NAME]",
        help=f"auto (the default), {', '.join(TRANSPORTS)}; several: the trace once for each, then a comparison",
    )
    parser.add_argument("--favor", choices=("swap", "compute"), default="swap", help="what auto spares; default: swap")
    parser.add_argument("--block-tokens", type=_count, default=512, metavar="T", help="divides an id's 512")
    parser.add_argument("--model", default="tiny", metavar="NAME", help=f"cache geometry: {', '.join(MODELS)}")
    parser.add_argument("--layers", type=_count, default=None, metavar="L", help="instead of the model's own")
    parser.add_argument("--tp", type=_count, default=1, metavar="N", help="tensor parallel ranks; this is one of them")
    parser.add_argument("--seed", type=int, default=0, help="of a made trace and of the simulated scheduler")
    _add_engine_and_json(parser)
    parser.set_defaults(run=_replay)


def _add_soak(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--minutes", type=_positive, default=2.0, metavar="M", help="default: 2")
    parser.add_argument(
        "--faults", type=_probability, default=0.001, metavar="P", help="of each driver call to fail; default: 0.001"
    )
    parser.add_argument("--seed", type=_seed, default=0, help="of the first replay; each one's is the next")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.set_defaults(run=_soak)


def _add_bench(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--what",
        choices=("all", "host-time", "calls", "matrix", "pool"),
        help="which part; calls: of host time what is quick, whole calls and launches; default: all",
    )
    parser.add_argument(
        "--minutes", type=_positive, default=2.0, metavar="M", help="how long the matrix may take; default: 2"
    )
    parser.add_argument("--repeats", type=_count, default=7, metavar="N", help="of each figure; default: 7")
    parser.add_argument("--calls", type=_count, default=300, metavar="N", help="of each transport; default: 300")
    parser.add_argument(
        "--beside", choices=("gemm", "hbm", "python"), help="instead: what swaps and such work cost each other"
    )
    parser.add_argument(
        "--window", type=_positive, default=1.0, metavar="S", help="seconds of each figure beside; default: 1"
    )
    _add_engine_and_json(parser)
    parser.set_defaults(run=_bench)


def _add_plot(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("file", type=Path, metavar="FILE.json", help="written by bench --json")
    parser.add_argument("--out", type=Path, default=Path(), metavar="FOLDER", help="default: where you are")
    parser.set_defaults(run=_plot)


def _count(text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} came; expected a whole number, 1 or more")
    return int(text)


def _positive(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} came; expected a number above 0")
    return value


def _percent(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value < 100:
        raise argparse.ArgumentTypeError(f"{text!r} came; expected a number from 0 to below 100")
    return value


def _probability(text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 0.1:
        raise argparse.ArgumentTypeError(f"{text!r} came; expected a probability from 0 to 0.1")
    return value


def _seed(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} came; expected a whole number, 0 or more")
    return int(text)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _engine(options: argparse.Namespace) -> str:
    return options.engine or ("cuda" if cuda_available() else "simulated")


def _write(path: Path | None, text: str) -> None:
    if path is not None:
        write_whole(path, text)


def _info(options: argparse.Namespace) -> int:
    from numba_kvswap.info import lines

    print(*lines(), sep="\n")
    return 0


def _check(options: argparse.Namespace) -> int:
    if options.stateful:
        return _check_histories(options)
    from numba_kvswap.check import check
    from numba_kvswap.testing import engine_named

    if options.steps:
        raise ValueError("--steps came without --stateful; name the number of swaps: --examples")
    engine = _engine(options) + (f"-{options.transport}" if options.transport not in (None, "auto") else "")
    report, first_mismatch = check(engine_named(engine), options.examples or 2000, options.seed)
    print(
        f"{report.examples} swaps on {report.engine}, {report.invalid_examples} of them invalid: "
        f"{report.mismatches} mismatches, {report.seconds:.1f} s"
    )
    if first_mismatch:
        print(f"\nThe first mismatch again:\n\n{first_mismatch}")
    _write(options.json, report.to_json())
    return 1 if report.mismatches else 0


def _check_histories(options: argparse.Namespace) -> int:
    from numba_kvswap.testing.history import walk

    if options.examples:
        raise ValueError("--examples and --stateful came; name the number of steps: --steps")
    report, first_mismatch = walk(_engine(options), options.steps or 10_000, options.seed, options.transport)
    print(*report.lines(), sep="\n")
    if first_mismatch:
        print(f"\nThe first mismatch again:\n\n{first_mismatch}")
    _write(options.json, report.to_json())
    return 1 if report.mismatches else 0


def _calibrate(options: argparse.Namespace) -> int:
    from numba_kvswap.calibration_report import calibrated

    costs, lines = calibrated()
    print(*lines, sep="\n")
    _write(options.json, costs.to_json())
    return 0


def _replay(options: argparse.Namespace) -> int:
    from numba_kvswap.replay.report import comparison, runs_json
    from numba_kvswap.replay.trace import ID_TOKENS
    from numba_kvswap.transports.named import transport_named

    if ID_TOKENS % options.block_tokens:
        raise ValueError(f"--block-tokens is {options.block_tokens}; expected a divisor of {ID_TOKENS}")
    names = options.transport or ["auto"]
    for name in names:
        if name != "auto":
            transport_named(name)  # a mistyped one is better known before the first replay than after it
    reports: list[ReplayReport] = []
    for name in names:
        reports.append(_replayed(options, name))
        print(("\n" if len(reports) > 1 else "") + reports[-1].table())
        _write(options.json, runs_json(reports))
    if len(reports) > 1:
        print("\n" + comparison(reports))
    return 1 if any(report.mismatches for report in reports) else 0


def _replayed(options: argparse.Namespace, transport: str) -> ReplayReport:
    from itertools import islice

    from tqdm import tqdm

    from numba_kvswap.replay.models import model_named
    from numba_kvswap.replay.run import replay
    from numba_kvswap.replay.stages import stage_named
    from numba_kvswap.replay.tiers import Placement
    from numba_kvswap.replay.trace import ID_TOKENS, Request, made_trace, read_trace

    requests: Iterable[Request] = (
        islice(read_trace(options.trace), options.requests)
        if options.trace
        else made_trace(options.seed, options.requests or _MADE_REQUESTS)
    )
    layers = model_named(options.model).block_shapes(options.block_tokens, options.tp, options.layers)
    blocks_per_id = ID_TOKENS // options.block_tokens
    sizes = options.device_blocks, options.host_blocks, blocks_per_id
    placement = Placement(*sizes, options.host_slots, options.host_headroom)
    stage = stage_named(_engine(options), options.seed)
    try:
        shown = tqdm(requests, desc=transport, unit=" requests", disable=None)
        return replay(shown, layers, placement, stage, transport, options.favor)
    except (KVSwapDriverError, MemoryError) as error:
        if isinstance(error, KVSwapDriverError) and error.result_name != "CUDA_ERROR_OUT_OF_MEMORY":
            raise
        block_gib = sum(layer.block_bytes for layer in layers) / 2**30
        raise ValueError(
            f"the pools take {block_gib * options.device_blocks:.1f} GiB of device memory and "
            f"{block_gib * options.host_blocks:.1f} GiB of pinned memory, which is not to be had ({error}); "
            "lower --device-blocks, --host-blocks or --layers"
        ) from error


def _soak(options: argparse.Namespace) -> int:
    from numba_kvswap.replay.soak import soak

    report = soak(options.minutes, options.faults, options.seed)
    print(*report.lines(), sep="\n")
    _write(options.json, report.to_json())
    return 0 if report.well else 1


def _bench(options: argparse.Namespace) -> int:
    from numba_kvswap.bench.bench_report import BenchReport
    from numba_kvswap.bench.run import bench, bench_beside

    def keep(report: BenchReport) -> None:
        _write(options.json, report.to_json())

    if options.beside and options.what:
        raise ValueError(f"--what {options.what} and --beside {options.beside} came; expected one of them a run")
    if options.beside:
        bench_beside(_engine(options), options.beside, options.window, keep)
    else:
        bench(_engine(options), options.what or "all", options.minutes, options.repeats, options.calls, keep)
    return 0


def _plot(options: argparse.Namespace) -> int:
    from numba_kvswap.bench.bench_report import REPORT_BYTES_MAX, BenchReport
    from numba_kvswap.bench.plot import plot

    content = read_plain(options.file, REPORT_BYTES_MAX)
    try:
        report = BenchReport.from_json(content.decode("utf-8"))
        print(*plot(report, options.out), sep="\n")
    except ValueError as error:
        raise ValueError(f"{options.file}: {error}") from error
    return 0


if __name__ == "__main__":
    sys.exit(main())
