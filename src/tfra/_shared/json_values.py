"""Values that JSON can't represent: infinite numbers, NaN, and bytes that are not UTF-8."""

from __future__ import annotations

import math
from typing import Any


def number_value(number: float) -> float | str:
    """Returns a number as a value for JSON: infinity and NaN become strings."""
    if math.isfinite(number):
        return float(number)
    return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")


def of_number_value(value: Any) -> float:
    """Returns the number that `number_value` converted."""
    return float(value)


def bytes_value(text: str | bytes) -> str | dict[str, str]:
    """Returns text as a value for JSON: bytes that are not UTF-8 become `{"hex": digits}`."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def of_bytes_value(value: Any) -> bytes:
    """Returns the bytes that `bytes_value` converted."""
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()
