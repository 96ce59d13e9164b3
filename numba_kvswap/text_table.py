"""Plain text tables."""

from __future__ import annotations

from collections.abc import Iterable


def number(value: float | None, digits: int) -> str:
    return "-" if value is None else f"{value:,.{digits}f}"


def aligned(rows: Iterable[tuple[str, ...]], left_columns: int) -> list[str]:
    """Lines of equal length; the first columns are words and stand to the left, the others to the right."""
    listed = list(rows)
    widths = [max(map(len, column)) for column in zip(*listed, strict=True)]
    return [
        "  ".join(
            cell.ljust(width) if index < left_columns else cell.rjust(width)
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        for row in listed
    ]
