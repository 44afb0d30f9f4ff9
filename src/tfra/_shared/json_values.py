"""Numbers and bytes in JSON, where the standard has no form for them."""

from __future__ import annotations

import math
from typing import Any


def number_value(number: float) -> float | str:
    """Returns a number as JSON holds it: infinite ones and NaN are strings."""
    if math.isfinite(number):
        return float(number)
    return "nan" if math.isnan(number) else ("inf" if number > 0 else "-inf")


def of_number_value(value: Any) -> float:
    """Returns the number that `number_value` made a value of."""
    return float(value)


def bytes_value(text: str | bytes) -> str | dict[str, str]:
    """Returns text as JSON holds it: bytes that are not UTF-8 are an object of their digits."""
    data = text.encode(errors="surrogateescape") if isinstance(text, str) else text
    try:
        return data.decode()
    except UnicodeDecodeError:
        return {"hex": data.hex()}


def of_bytes_value(value: Any) -> bytes:
    """Returns the bytes that `bytes_value` made a value of."""
    return bytes.fromhex(value["hex"]) if isinstance(value, dict) else value.encode()
