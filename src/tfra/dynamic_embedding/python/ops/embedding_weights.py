"""What stands for a `Variable` in training, under the name of their module in TFRA."""

from tfra.dynamic_embedding._model_mode import ModelMode
from tfra.dynamic_embedding._trainable import TrainableWrapper

__all__ = ["ModelMode", "TrainableWrapper"]
