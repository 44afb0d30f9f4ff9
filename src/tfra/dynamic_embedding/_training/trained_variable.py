"""What training asks of a variable: the interface between shadows, optimizers and `Variable`."""

from __future__ import annotations

import abc
from collections.abc import Callable, Iterator, MutableMapping
from typing import Any

from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import Content
from tfra.dynamic_embedding._tables.rules import BoundOptimizer, CustomRule, EngineRule
from tfra.dynamic_embedding._training.gradient_sums import GradientSums


class TrainedVariable(abc.ABC):
    """A variable whose rows optimizers can update. `Variable` implements it.

    Attributes:
        trainable: Whether optimizers update it.
        bp_v2: Whether they add to rows instead of setting them.
        trained_by: The class of the optimizer that was last seen to train it.
        shadows: The shadows that were made by the user, by name.
        v1_optimizers: Numbers for the optimizers of `tf.compat.v1` that train it.
    """

    trainable: bool
    bp_v2: bool
    trained_by: str | None
    shadows: MutableMapping[str, Any]
    v1_optimizers: Iterator[int]

    @property
    @abc.abstractmethod
    def name(self) -> str:
        """The name of the variable."""

    @property
    @abc.abstractmethod
    def key_dtype(self) -> tf.DType:
        """The type of the keys."""

    @property
    @abc.abstractmethod
    def value_dtype(self) -> tf.DType:
        """The type of the values."""

    @property
    @abc.abstractmethod
    def dim(self) -> int:
        """The length of a row."""

    @property
    @abc.abstractmethod
    def gradient_sums(self) -> GradientSums:
        """The gradients that wait for a step of an optimizer that accumulates them."""

    @abc.abstractmethod
    def lookup(self, keys: Any, return_exists: bool = False, name: str | None = None) -> Any:
        """Looks up rows, and stores nothing."""

    @abc.abstractmethod
    def lookup_to_train(self, keys: tf.Tensor) -> tf.Tensor:
        """Looks up rows that an optimizer will update."""

    @abc.abstractmethod
    def lookup_pooled(
        self,
        keys: tf.Tensor,
        row_splits: tf.Tensor,
        weights: tf.Tensor,
        combiner: str,
        training: bool = False,
        max_norm: float = 0.0,
    ) -> tf.Tensor:
        """Combines the rows of each of several runs of keys."""

    @abc.abstractmethod
    def lookup_slots(
        self, keys: tf.Tensor, optimizer: BoundOptimizer, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the rows and all slots of some keys, initial ones where they are missing."""

    @abc.abstractmethod
    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and their rows."""

    @abc.abstractmethod
    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Returns the number of keys."""

    @abc.abstractmethod
    def bind(self, optimizer: BoundOptimizer, step: Any, keeps: str) -> list[Any]:
        """Says that an optimizer is about to take a step."""

    @abc.abstractmethod
    def apply_gradients(self, keys: tf.Tensor, gradients: tf.Tensor, **options: Any) -> Any:
        """Takes one step of an update rule of the engine."""

    @abc.abstractmethod
    def update_rows(
        self,
        keys: tf.Tensor,
        update: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        rule: CustomRule,
        add: bool,
    ) -> Any:
        """Has a function compute new rows and slots from old ones."""

    @abc.abstractmethod
    def content(self) -> Content:
        """Returns all that is saved of the variable, as tensors by name."""

    @abc.abstractmethod
    def restore(self, content: Content) -> Any:
        """Replaces what is in the variable by what `content` returned."""

    @abc.abstractmethod
    def get_slot_variables(self, optimizer: Any) -> list[Any]:
        """Returns the slots that an optimizer keeps in the rows."""
