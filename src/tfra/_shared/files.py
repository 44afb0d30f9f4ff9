"""Files that several processes may be writing."""

from __future__ import annotations

import os
from pathlib import Path


def is_at(file: int, path: Path) -> bool:
    """Whether an open file is the one that has this path now. A link is never."""
    try:
        return os.path.samestat(os.fstat(file), path.lstat())
    except FileNotFoundError:
        return False
