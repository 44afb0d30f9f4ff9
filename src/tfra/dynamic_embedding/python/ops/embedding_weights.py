"""What stands for a `Variable` in training, under the name of their module in TFRA."""

from tfra.dynamic_embedding._training.model_mode import ModelMode
from tfra.dynamic_embedding._training.shadow import TrainableWrapper

__all__ = ["ModelMode", "TrainableWrapper"]
