"""How words are loaded and stored, as LLVM: emitted alike for the GPU and for the host."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from numba_kvswap.kernels.body import WIDTHS, Primitives

#: (builder, address, width): the address as a pointer to words of `width` bytes.
Pointer = Callable[[Any, Any, int], Any]


def primitives(intrinsic: Any, types: Any, pointer: Pointer, alignment: Callable[[int], int]) -> Primitives:
    """Of the compiler that `intrinsic` and `types` belong to. alignment: what it may rely on for a word that is
    copied, by its width; bytes."""
    number = types.uint64

    @intrinsic  # type: ignore[untyped-decorator]
    def load_word(_typing: Any, address: Any) -> Any:
        return number(number), lambda _context, builder, _signature, args: builder.load(
            pointer(builder, args[0], 8), align=8
        )

    def one(width: int) -> Any:
        @intrinsic  # type: ignore[untyped-decorator]
        def copy(_typing: Any, target: Any, source: Any) -> Any:
            return types.void(number, number), _copies(width, 1, pointer, alignment(width))

        return copy

    def four(width: int) -> Any:
        @intrinsic  # type: ignore[untyped-decorator]
        def copy_4(_typing: Any, target: Any, source: Any, step: Any) -> Any:
            return types.void(number, number, number), _copies(width, 4, pointer, alignment(width))

        return copy_4

    return Primitives(load_word, {width: one(width) for width in WIDTHS}, {width: four(width) for width in WIDTHS})


def _copies(width: int, count: int, pointer: Pointer, align: int) -> Any:
    """Emits copies of `count` words; a third argument says how far apart, where there is more than one."""

    def emit(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        target, source = args[:2]
        places = [(target, source)]
        for _ in range(1, count):
            target, source = (builder.add(address, args[2]) for address in (target, source))
            places.append((target, source))
        words = [builder.load(pointer(builder, source, width), align=align) for _, source in places]
        for word, (target, _) in zip(words, places, strict=True):
            builder.store(word, pointer(builder, target, width), align=align)
        return context.get_dummy_value()

    return emit
