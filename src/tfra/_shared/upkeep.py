"""Checks of the numbers that decide which rows expire."""

from __future__ import annotations

from typing import Any

from tfra._shared import arrays, limits


def checked_ttl(ttl: Any) -> float | None:
    """Returns a checked time to live, in seconds, or None."""
    return None if ttl is None else arrays.real(ttl, "ttl", "a number of seconds, 0 or more", 0)


def checked_min_norm(min_norm: Any) -> float | None:
    """Returns a checked minimal norm, or None."""
    return None if min_norm is None else arrays.real(min_norm, "min_norm", "a number, 0 or more", 0)


def checked_norm_writes(norm_writes: Any) -> int:
    """Returns a checked number of writes."""
    return arrays.integer(norm_writes, "norm_writes", 0, limits.MAX_UINT32)
