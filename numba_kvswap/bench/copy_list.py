"""A plan as a plain list of copies, as FastDeploy's loop would make them: one a run and layer."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from numba_kvswap.ids import Ids, Words
from numba_kvswap.layers import Layer
from numba_kvswap.plan import Plan


@dataclass(frozen=True)
class CopyList:
    """uint64 [copies]: target and source address, and bytes, of every copy."""

    targets: Words
    sources: Words
    sizes_bytes: Words


def copy_list(plan: Plan, source: Sequence[Layer], target: Sequence[Layer]) -> CopyList:
    """By layer, then by ascending target: a copy a run where blocks are dense on both sides, else a copy a block."""
    parts = [_layer_copies(plan, *layers) for layers in zip(source, target, strict=True)]
    targets, sources, sizes_bytes = (np.concatenate(words) for words in zip(*parts, strict=True))
    return CopyList(targets, sources, sizes_bytes)


def _layer_copies(plan: Plan, source: Layer, target: Layer) -> tuple[Words, Words, Words]:
    dense = source.block_stride_bytes == source.block_bytes == target.block_stride_bytes
    first_source, first_target, blocks = _runs(plan) if dense else _single_blocks(plan)
    return (
        _addresses(target, first_target),
        _addresses(source, first_source),
        blocks.astype(np.uint64) * np.uint64(source.block_bytes),
    )


def _runs(plan: Plan) -> tuple[Ids, Ids, Ids]:
    return plan.run_source, plan.run_target, plan.run_blocks


def _single_blocks(plan: Plan) -> tuple[Ids, Ids, Ids]:
    first = np.cumsum(plan.run_blocks) - plan.run_blocks
    within = np.arange(plan.blocks) - np.repeat(first, plan.run_blocks)
    sides = [np.repeat(side, plan.run_blocks) + within for side in (plan.run_source, plan.run_target)]
    return sides[0], sides[1], np.ones(plan.blocks, np.int64)


def _addresses(layer: Layer, blocks: Ids) -> Words:
    return np.uint64(layer.address) + blocks.astype(np.uint64) * np.uint64(layer.block_stride_bytes)
