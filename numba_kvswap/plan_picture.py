"""A plan as a small picture: its source blocks above, its target blocks below, a band for every run."""

from __future__ import annotations

from colorsys import hls_to_rgb
from html import escape
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from numba_kvswap.plan import Plan

_WIDTH, _STRIP, _GAP, _TEXT = 720, 14, 70, 18
_RUNS_MAX = 256
# Golden angle, so that neighbouring runs differ in hue; middling lightness reads on white and on black.
_HUE_STEP_DEGREES = 137.508


def svg(plan: Plan) -> str:
    """Inline SVG of at most 256 runs, for notebooks and the README; light and dark backgrounds alike."""
    source_blocks, target_blocks = plan.least_blocks
    shown = min(plan.runs, _RUNS_MAX)
    bands = "".join(_band(plan, run, source_blocks, target_blocks) for run in range(shown))
    hidden = f", first {shown} runs shown" if shown < plan.runs else ""
    caption = (
        f"{plan.pairs} pairs, {plan.blocks} blocks in {plan.runs} runs, {plan.blocks_per_run:.2f} blocks a run{hidden}"
    )
    top, bottom = _TEXT, _TEXT + _STRIP + _GAP
    height = bottom + _STRIP + 2 * _TEXT
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" width="{_WIDTH}" height="{height}" '
        'font-family="sans-serif" font-size="12" fill="#888">'
        f"{_strip(top)}{_strip(bottom)}{bands}"
        f'<text x="0" y="{_TEXT - 5}">{_blocks_in_words(plan.sides[0], source_blocks)}</text>'
        f'<text x="0" y="{bottom + _STRIP + _TEXT - 4}">{_blocks_in_words(plan.sides[1], target_blocks)}</text>'
        f'<text x="{_WIDTH - 4}" y="{bottom + _STRIP + 2 * _TEXT - 6}" text-anchor="end">{caption}</text></svg>'
    )


def _blocks_in_words(side: str, blocks: int) -> str:
    return f"{escape(side)} blocks 0 to {blocks - 1}" if blocks else f"no {escape(side)} blocks"


def _strip(y: int) -> str:
    return f'<rect x="0" y="{y}" width="{_WIDTH}" height="{_STRIP}" fill="none" stroke="#888"/>'


def _band(plan: Plan, run: int, source_blocks: int, target_blocks: int) -> str:
    """One run: its blocks in both strips and the band that joins them."""
    blocks = int(plan.run_blocks[run])
    source_x0, source_x1 = _span(int(plan.run_source[run]), blocks, source_blocks)
    target_x0, target_x1 = _span(int(plan.run_target[run]), blocks, target_blocks)
    red, green, blue = (round(255 * part) for part in hls_to_rgb(run * _HUE_STEP_DEGREES / 360 % 1, 0.55, 0.6))
    top, upper = _TEXT, _TEXT + _STRIP
    lower, bottom = upper + _GAP, upper + _GAP + _STRIP
    colour = f"#{red:02x}{green:02x}{blue:02x}"
    joined = f"M{source_x0:.2f} {upper}H{source_x1:.2f}L{target_x1:.2f} {lower}H{target_x0:.2f}Z"
    return (
        f'<g fill="{colour}">'
        f'<rect x="{source_x0:.2f}" y="{top}" width="{source_x1 - source_x0:.2f}" height="{upper - top}"/>'
        f'<rect x="{target_x0:.2f}" y="{lower}" width="{target_x1 - target_x0:.2f}" height="{bottom - lower}"/>'
        f'<path fill-opacity="0.35" d="{joined}"/></g>'
    )


def _span(first: int, blocks: int, total: int) -> tuple[float, float]:
    start = _WIDTH * first / total
    return start, max(start + 1.0, _WIDTH * (first + blocks) / total)
