"""Whether lookups are made to be trained, or only to be read."""

from __future__ import annotations

import threading


class ModelMode:
    """The modes that lookups can be in."""

    TRAIN = "train"
    INFERENCE = "inference"


_lock = threading.Lock()
_current = ModelMode.TRAIN


def _set(mode: str) -> None:
    global _current
    with _lock:
        _current = mode


def enable_train_mode() -> None:
    """Lets gradients be taken of lookups, which is the mode a program starts in."""
    _set(ModelMode.TRAIN)


def enable_inference_mode() -> None:
    """Makes lookups that are traced or run from now on read-only.

    Example:
    >>> tfra.dynamic_embedding.enable_inference_mode()
    >>> tfra.dynamic_embedding.get_model_mode()
    'inference'
    >>> tfra.dynamic_embedding.enable_train_mode()
    """
    _set(ModelMode.INFERENCE)


def get_model_mode() -> str:
    """Returns `ModelMode.TRAIN` or `ModelMode.INFERENCE`."""
    return _current
