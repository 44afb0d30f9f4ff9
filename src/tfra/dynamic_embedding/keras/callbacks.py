"""Callbacks for `fit` that restrict tables, expire rows and report statistics."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tfra._shared.stats import TableStats
from tfra._shared.upkeep import checked_min_norm, checked_norm_writes, checked_ttl
from tfra.dynamic_embedding import tensorboard
from tfra.dynamic_embedding._platform import arguments
from tfra.dynamic_embedding._platform.keras import keras
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._training.shadow_variable import ShadowVariable
from tfra.dynamic_embedding._upkeep.restrict_policies import restrict_numbers
from tfra.dynamic_embedding._variable.variable import Variable

__all__ = ["ExpireCallback", "RestrictCallback", "TableStatsCallback"]


class _TableCallback(keras.callbacks.Callback):  # type: ignore[misc]
    """Calls `run` once in each epoch, or after each `freq` training steps.

    Args:
        freq: `"epoch"`, or a number of training steps. With `steps_per_execution`, `run` is called
            after the execution that reaches this number.
    """

    def __init__(self, freq: str | int = "epoch") -> None:
        super().__init__()
        self.freq = freq
        every_epoch = isinstance(freq, str) and freq == "epoch"
        self._every = None if every_epoch else arguments.integer(freq, "freq", at_least=1)
        self._step = 0

    def variables(self) -> dict[str, Variable]:
        """Returns the Variables of the model's layers, by name. Equal names get a number."""
        trained = [v.params for v in self.model.variables if isinstance(v, ShadowVariable)]
        found: dict[str, Variable] = {}
        for variable in dict.fromkeys(v for v in trained if isinstance(v, Variable)):
            name, number = variable.name, 0
            while name in found:
                number += 1
                name = f"{variable.name}_{number}"
            found[name] = variable
        return found

    def run(self, logs: dict[str, Any] | None) -> None:
        """Does the work of the callback."""
        raise NotImplementedError

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        before = self._step
        self._step += self.model.steps_per_execution
        if self._every is not None and self._step // self._every > before // self._every:
            self.run(logs)

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._every is None:
            self.run(logs)


class _ChoosingCallback(_TableCallback):
    """A callback for some tables of a model. At least one table must be suitable."""

    needed = ""  # What a suitable table has, for the error message.
    _checked = False

    def chooses(self, variable: Variable) -> bool:
        """Whether this Variable is suitable."""
        raise NotImplementedError

    def chosen(self) -> list[Variable]:
        """Returns the suitable Variables.

        Raises:
            ValueError: If there are none.
        """
        variables = self.variables()
        chosen = [variable for variable in variables.values() if self.chooses(variable)]
        if not chosen:
            raise ValueError(
                f"{type(self).__name__} needs a layer of tfra with {self.needed}. Received: a "
                f"model whose tables are {sorted(variables)}"
            )
        self._checked = True
        return chosen

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        self._checked = False
        # A model that was not built yet makes its tables in the first step.
        if self.model.built:
            self.chosen()

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if not self._checked:
            self.chosen()
        super().on_train_batch_end(batch, logs)


class RestrictCallback(_ChoosingCallback):
    """Restricts the tables of a model by their `restrict_policy`.

    Example:
    >>> callback = tfra.dynamic_embedding.keras.callbacks.RestrictCallback(
    ...     1_000_000, trigger=1_200_000, freq=1000
    ... )

    Args:
        num_reserved: The number of keys that each table keeps.
        trigger: A table is restricted only if it has more keys than this. Defaults to
            `num_reserved`.
        freq: `"epoch"`, or a number of training steps.

    Raises:
        TypeError: If a number is not an integer.
        ValueError: If a number is negative; in training, also if no table has a `restrict_policy`.
    """

    needed = "a `restrict_policy`"

    def __init__(
        self, num_reserved: int, trigger: int | None = None, freq: str | int = "epoch"
    ) -> None:
        super().__init__(freq)
        self.num_reserved, self.trigger = restrict_numbers(num_reserved, {"trigger": trigger})

    def chooses(self, variable: Variable) -> bool:
        """Whether this Variable can be restricted."""
        return variable.restrict_policy is not None

    def run(self, logs: dict[str, Any] | None) -> None:
        """Restricts the tables."""
        for variable in self.chosen():
            variable.restrict(self.num_reserved, trigger=self.trigger)


class ExpireCallback(_ChoosingCallback):
    """Removes expired rows from the tables of a model.

    Args:
        ttl: Seconds without an update after which a row expires. Defaults to the `ttl` of each
            layer.
        min_norm: Rows with a smaller L2 norm expire. Defaults to the `min_norm` of each layer.
        norm_writes: Only rows with at least this many updates expire by `min_norm`.
        freq: `"epoch"`, or a number of training steps.

    Raises:
        ValueError: If a number is negative; in training, also if no table has a `ttl` or
            `min_norm`.
    """

    needed = "a `ttl` or `min_norm`"

    def __init__(
        self,
        ttl: float | None = None,
        min_norm: float | None = None,
        norm_writes: int = 1,
        freq: str | int = "epoch",
    ) -> None:
        super().__init__(freq)
        self.ttl = checked_ttl(ttl)
        self.min_norm = checked_min_norm(min_norm)
        self.norm_writes = checked_norm_writes(norm_writes)

    def chooses(self, variable: Variable) -> bool:
        """Whether rows of this Variable can expire."""
        given = self.ttl is not None or self.min_norm is not None
        own = variable.ttl is not None or variable.min_norm is not None
        return own or (given and variable.keeps_metadata)

    def run(self, logs: dict[str, Any] | None) -> None:
        """Removes expired rows."""
        for variable in self.chosen():
            variable.expire(self.ttl, self.min_norm, self.norm_writes)


class TableStatsCallback(_TableCallback):
    """Adds statistics of a model's tables to the logs of `fit`, and writes them for TensorBoard.

    At the end of each epoch, the logs get an entry `"<table>/<figure>"` for each figure of
    `tfra.TableStats`. The `History` that `fit` returns has them too.

    Example:
    >>> callback = tfra.dynamic_embedding.keras.callbacks.TableStatsCallback()

    Args:
        log_dir: The directory for TensorBoard, which gets the figures and histograms; None to write
            nothing. Needs `pip install 'tfra[tensorboard]'`.
        freq: When to write for TensorBoard: `"epoch"`, or a number of training steps.
        figures: The names of the figures for the logs; all by default.

    Raises:
        ImportError: If `log_dir` is given and TensorBoard is not installed.
        ValueError: If a name in `figures` is unknown.
    """

    def __init__(
        self,
        log_dir: str | Path | None = None,
        freq: str | int = "epoch",
        figures: list[str] | None = None,
    ) -> None:
        super().__init__(freq)
        self.log_dir = log_dir
        known = TableStats.figures()
        self.figures = list(known if figures is None else figures)
        for figure in self.figures:
            if figure not in known:
                raise ValueError(
                    f"`figures`: expected names of {sorted(known)}, received {figure!r}"
                )
        self._writer: Any = None
        if log_dir is not None:
            tensorboard.require_tensorboard()

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self.log_dir is not None and self._writer is None:
            self._writer = tf.summary.create_file_writer(str(Path(self.log_dir) / "tables"))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if logs is not None:
            for name, variable in self.variables().items():
                stats = variable.stats().as_dict()
                for figure in self.figures:
                    logs[f"{name}/{figure}"] = stats[figure]
        super().on_epoch_end(epoch, logs)

    def run(self, logs: dict[str, Any] | None) -> None:
        """Writes for TensorBoard."""
        if self._writer is None:
            return
        with self._writer.as_default():
            for name, variable in self.variables().items():
                tensorboard.write_stats(variable, self._step, name)
                tensorboard.write_histograms(variable, self._step, name)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Called by Keras."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None
