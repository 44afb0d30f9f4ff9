"""The mode of a program: whether gradients can be taken of lookups."""

from __future__ import annotations


class ModelMode:
    """The modes of a program.

    Attributes:
        TRAIN: Gradients can be taken of lookups.
        INFERENCE: Lookups only read rows.
        CURRENT_SETTING: The current mode.
    """

    TRAIN = "train"
    INFERENCE = "inference"
    CURRENT_SETTING = TRAIN


def enable_train_mode() -> None:
    """Lets gradients be taken of lookups. This is the mode in which a program starts."""
    ModelMode.CURRENT_SETTING = ModelMode.TRAIN


def enable_inference_mode() -> None:
    """Makes lookups that are traced or run from now on read-only.

    Example:
    >>> tfra.dynamic_embedding.enable_inference_mode()
    >>> tfra.dynamic_embedding.get_model_mode()
    'inference'
    >>> tfra.dynamic_embedding.enable_train_mode()
    """
    ModelMode.CURRENT_SETTING = ModelMode.INFERENCE


def get_model_mode() -> str:
    """Returns `ModelMode.TRAIN` or `ModelMode.INFERENCE`."""
    return ModelMode.CURRENT_SETTING
