"""Whether lookups are made to be trained, or only to be read."""

from __future__ import annotations


class ModelMode:
    """The modes that lookups can be in.

    Attributes:
        TRAIN: Gradients can be taken of lookups.
        INFERENCE: Lookups only read.
        CURRENT_SETTING: The mode of this program now.
    """

    TRAIN = "train"
    INFERENCE = "inference"
    CURRENT_SETTING = TRAIN


def enable_train_mode() -> None:
    """Lets gradients be taken of lookups, which is the mode a program starts in."""
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
