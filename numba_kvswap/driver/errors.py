"""What a failing driver call raises."""

from __future__ import annotations

from typing import Any


class KVSwapDriverError(RuntimeError):
    """A CUDA driver call failed.

    Attributes:
        call: the driver function, e.g. ``"cuMemcpyAsync"``.
        result_name: the CUresult by name, e.g. ``"CUDA_ERROR_INVALID_VALUE"``.
        layer: index of the layer being copied, or None where the call is not about a layer.
        run: index of the plan's run being copied, or None likewise.
        undefined_targets: ids of the target blocks that hold undefined bytes, or will once what was submitted has
            landed: all of a swap whose submission failed in its midst; () where it failed before anything could move.
            Everything else is as it was.
    """

    def __init__(
        self,
        call: str,
        result_name: str,
        *,
        layer: int | None = None,
        run: int | None = None,
        advice: str = "",
        undefined_targets: tuple[int, ...] = (),
    ) -> None:
        self.call = call
        self.result_name = result_name
        self.layer = layer
        self.run = run
        self.advice = advice
        self.undefined_targets = undefined_targets
        where = "" if layer is None else f" at layer {layer}, run {run}"
        super().__init__(f"{call} failed with {result_name}{where}{'. ' + advice if advice else ''}")

    def __reduce__(self) -> tuple[object, ...]:
        # RuntimeError's own would make it anew from the message alone, which fails in a pool of processes.
        named = {name: getattr(self, name) for name in ("layer", "run", "advice", "undefined_targets")}
        return _made_again, (type(self), self.call, self.result_name, named)


def _made_again(kind: type[KVSwapDriverError], call: str, result_name: str, named: dict[str, Any]) -> KVSwapDriverError:
    return kind(call, result_name, **named)
