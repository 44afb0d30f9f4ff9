"""The interface by which shadows and optimizers use a `Variable`."""

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
        trainable: Whether optimizers update the rows.
        bp_v2: Whether optimizers add to rows instead of assigning them.
        trained_by: The name of the class of the optimizer that last trained the variable.
        shadows: The shadows that the user made, by name.
        v1_optimizers: Gives each optimizer of `tf.compat.v1` that trains the variable a number.
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
    def tables(self) -> list[Any]:
        """The tables that contain the rows."""

    @property
    @abc.abstractmethod
    def gradient_sums(self) -> GradientSums:
        """The sums of gradients, for an optimizer that accumulates them."""

    @abc.abstractmethod
    def lookup(self, keys: Any, return_exists: bool = False, name: str | None = None) -> Any:
        """Looks up rows. Missing keys are not inserted."""

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
        """Combines the rows of each bag of keys; see `Bags`."""

    @abc.abstractmethod
    def lookup_slots(
        self, keys: tf.Tensor, optimizer: BoundOptimizer, rule: CustomRule | EngineRule
    ) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the values and slots of keys. Missing keys get initial ones."""

    @abc.abstractmethod
    def export(self, name: str | None = None) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns all keys and their rows."""

    @abc.abstractmethod
    def size(self, index: int | None = None, name: str | None = None) -> tf.Tensor:
        """Returns the number of keys."""

    @abc.abstractmethod
    def bind(self, optimizer: BoundOptimizer, step: Any, keeps: str) -> list[Any]:
        """Binds an optimizer that is about to take a step; see `TableTraining.bind`."""

    @abc.abstractmethod
    def apply_gradients(self, keys: tf.Tensor, gradients: tf.Tensor, **options: Any) -> Any:
        """Takes one step of an update rule of the engine."""

    @abc.abstractmethod
    def store_new(self, keys: tf.Tensor) -> Any:
        """Inserts missing keys that admission lets in, with their initial rows."""

    @abc.abstractmethod
    def update_rows(
        self,
        keys: tf.Tensor,
        update: Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor]],
        rule: CustomRule,
        add: bool,
    ) -> Any:
        """Replaces rows and slots by what a function computes from them."""

    @abc.abstractmethod
    def content(self) -> Content:
        """Returns all that is saved of the variable, as tensors by name."""

    @abc.abstractmethod
    def restore(self, content: Content) -> Any:
        """Replaces the content of the variable by what `content` returned."""

    @abc.abstractmethod
    def get_slot_variables(self, optimizer: Any) -> list[Any]:
        """Returns the slots that an optimizer keeps in the rows."""
