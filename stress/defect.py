"""What a round raises when the table is not what the oracle says."""

from __future__ import annotations

from typing import Any


class Defect(AssertionError):
    """The table did something wrong.

    Args:
        what: What was expected and what was received.
    """

    def __init__(self, what: str) -> None:
        super().__init__(what)


def expect(holds: Any, what: str) -> None:
    """Raises a Defect unless it holds."""
    if not holds:
        raise Defect(what)


def expect_equal(received: Any, expected: Any, what: str) -> None:
    """Raises a Defect unless both are equal."""
    if received != expected:
        raise Defect(f"{what}: expected {expected}, received {received}")
