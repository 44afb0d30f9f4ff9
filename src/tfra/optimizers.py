"""Optimizers: descriptions of the update rules that the engine computes.

The classes have the names, arguments and defaults of the optimizers of Keras 3, and the engine
computes the same numbers. They hold no state: the slots are in the rows of the table.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import numbers
from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from typing import Any, ClassVar

from tfra import _native
from tfra._shared import limits
from tfra._shared.arrays import integer
from tfra._shared.rule import Rule

__all__ = [
    "SGD", "Adadelta", "Adagrad", "Adam", "AdamW", "Adamax", "Ftrl", "Lion", "Nadam", "Optimizer",
    "RMSprop", "RowwiseAdagrad", "get",
]  # fmt: skip

# The `UpdateParams` of the engine and their defaults. A rule reads only those it needs.
_PARAMS: dict[str, float] = {
    "step": 1, "learning_rate": 0.001, "momentum": 0.0, "beta_1": 0.9, "beta_2": 0.999,
    "rho": 0.9, "epsilon": 1e-7, "l1": 0.0, "l2": 0.0, "l2_shrinkage": 0.0,
    "learning_rate_power": -0.5, "beta": 0.0,
    "weight_decay": 0.0, "clipnorm": 0.0, "clipvalue": 0.0,
}  # fmt: skip

_ENGINE_NAMES = {
    "l1_regularization_strength": "l1",
    "l2_regularization_strength": "l2",
    "l2_shrinkage_regularization_strength": "l2_shrinkage",
}

# Arguments that decide the slots of a row. An update can't override them.
_RULE_FIELDS = frozenset({"nesterov", "amsgrad", "centered", "initial_accumulator_value"})

# The range of an argument, in words and as a test. Arguments without a range are bools.
_Range = tuple[str, Callable[[float], bool]]
_NON_NEGATIVE: _Range = ("a non-negative number", lambda x: x >= 0)
_NON_POSITIVE: _Range = ("a number that is negative or zero", lambda x: x <= 0)
_POSITIVE: _Range = ("a positive number", lambda x: x > 0)
_UNIT: _Range = ("a number in [0, 1]", lambda x: 0 <= x <= 1)
_UNIT_ABOVE_ZERO: _Range = ("a number in (0, 1]", lambda x: 0 < x <= 1)
_UNIT_BELOW_ONE: _Range = ("a number in [0, 1)", lambda x: 0 <= x < 1)


@dataclass(frozen=True)
class Optimizer:
    """Base class of the optimizers: the arguments that all of them take.

    Weight decay and clipping apply only to the rows that an update changes.

    Args:
        learning_rate: A float >= 0, which an update can override. Defaults to `0.001`.
        weight_decay: A float >= 0 or `None`. If set, each updated value first loses
            `value * weight_decay * learning_rate`.
        clipnorm: A float > 0 or `None`. If set, the highest L2 norm of a row's gradient.
        clipvalue: A float > 0 or `None`. If set, each element of the gradient is clipped to
            `[-clipvalue, clipvalue]`. Only one of `clipnorm` and `clipvalue` can be set.
    """

    kind: ClassVar[str] = ""
    _ranges: ClassVar[dict[str, _Range]] = {
        **dict.fromkeys(("learning_rate", "weight_decay", "epsilon", "beta"), _NON_NEGATIVE),
        **dict.fromkeys(("initial_accumulator_value", *_ENGINE_NAMES), _NON_NEGATIVE),
        **dict.fromkeys(("clipnorm", "clipvalue"), _POSITIVE),
        **dict.fromkeys(("momentum", "rho"), _UNIT),
        **dict.fromkeys(("beta_1", "beta_2"), _UNIT_BELOW_ONE),  # Divided by 1 - beta ** step.
        "learning_rate_power": _NON_POSITIVE,
    }

    learning_rate: float = 0.001
    _: KW_ONLY
    weight_decay: float | None = None
    clipnorm: float | None = None
    clipvalue: float | None = None

    def __post_init__(self) -> None:
        if not self.kind:
            raise TypeError(f"`{type(self).__name__}` is a base class; make one of {_names()}.")
        for field in dataclasses.fields(self):
            self._check(field.name, getattr(self, field.name))
        _check_clipping(self.clipnorm, self.clipvalue)

    def _check(self, name: str, value: Any) -> None:
        """Raises ValueError unless an argument can have this value."""
        if name not in self._ranges:
            if not isinstance(value, bool):
                raise ValueError(_expected(name, "a bool", value))
        # None is allowed only if it is the default.
        elif value is not None or getattr(type(self), name) is not None:
            expected, in_range = self._ranges[name]
            if not (_is_finite(value) and in_range(value)):
                raise ValueError(_expected(name, expected, value))

    def rule(self) -> Rule:
        """Returns the rule, with the switches that decide the slots of a row."""
        momentum = getattr(self, "momentum", 0.0) != 0.0
        accumulator = getattr(self, "initial_accumulator_value", None)
        return Rule(
            self.kind,
            momentum=momentum,
            # Keras ignores `nesterov` if there is no momentum.
            nesterov=momentum and getattr(self, "nesterov", False),
            amsgrad=getattr(self, "amsgrad", False),
            centered=getattr(self, "centered", False),
            initial_accumulator=None if accumulator is None else float(accumulator),
        )

    def params(self, step: int, **overrides: float | None) -> dict[str, float]:
        """Returns the numbers of one update in the form that the engine takes.

        Args:
            step: An int >= 1. The number of updates, including this one.
            **overrides: Arguments with other values in this update. Arguments that decide the
                slots can't be overridden.

        Returns:
            A dict with every field of the engine's `UpdateParams`.
        """
        step = integer(step, "step", 1, limits.MAX_STEP)
        if not overrides:
            return {**self._params, "step": step}
        unknown = sorted(overrides.keys() - self._updatable)
        if unknown:
            raise TypeError(
                f"`{type(self).__name__}` can override {', '.join(self._updatable)} in an update. "
                f"Received: {', '.join(unknown)}"
            )
        params = {**self._params, "step": step}
        for name in self._updatable:
            if name in overrides:
                value = overrides[name]
                self._check(name, value)
                params[_ENGINE_NAMES.get(name, name)] = float(value or 0.0)
        _check_clipping(
            overrides.get("clipnorm", self.clipnorm), overrides.get("clipvalue", self.clipvalue)
        )
        return params

    @functools.cached_property
    def _updatable(self) -> tuple[str, ...]:
        """The arguments that an update can override."""
        return tuple(f.name for f in dataclasses.fields(self) if f.name not in _RULE_FIELDS)

    @functools.cached_property
    def _params(self) -> dict[str, float]:
        """The numbers of an update without overrides."""
        params = dict(_PARAMS)
        for name in self._updatable:
            params[_ENGINE_NAMES.get(name, name)] = float(getattr(self, name) or 0.0)
        return params

    def slot_names(self) -> tuple[str, ...]:
        """Returns the names of the slots of a row, in their order in memory."""
        return tuple(name for name, _ in _native.rule_slots(self.rule().to_json(), dim=1))


@dataclass(frozen=True)
class SGD(Optimizer):
    """Gradient descent, with optional momentum.

    Example:
    >>> SGD(learning_rate=0.1, momentum=0.9).slot_names()
    ('momentum',)

    Args:
        learning_rate: A float >= 0. Defaults to `0.01`.
        momentum: A float in [0, 1]; `0.0` means no momentum and no slot. Defaults to `0.0`.
        nesterov: Whether to look ahead along the momentum. Defaults to `False`.
    """

    kind: ClassVar[str] = "sgd"
    learning_rate: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """Adagrad: the rate of each element falls with the sum of its squared gradients.

    Example:
    >>> Adagrad(learning_rate=0.1).slot_names()
    ('accumulator',)

    Args:
        initial_accumulator_value: A float >= 0, the initial value of the sum. Defaults to `0.1`.
        epsilon: A float >= 0, added under the root. Defaults to `1e-7`.
    """

    kind: ClassVar[str] = "adagrad"
    initial_accumulator_value: float = 0.1
    epsilon: float = 1e-7


@dataclass(frozen=True)
class RowwiseAdagrad(Adagrad):
    """Adagrad with one accumulator per row, which sums the mean of the squared gradient.

    Keras does not have it. The slot of a row is one number instead of `dim` numbers. The arguments
    are those of `Adagrad`.

    Example:
    >>> RowwiseAdagrad(learning_rate=0.1).rule().kind
    'rowwise_adagrad'
    """

    kind: ClassVar[str] = "rowwise_adagrad"


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam: decaying averages of the gradient and its square, corrected for their start at zero.

    Example:
    >>> Adam(learning_rate=0.01, amsgrad=True).slot_names()
    ('momentum', 'velocity', 'velocity_hat')

    Args:
        beta_1: A float in [0, 1), the decay of the gradients. Defaults to `0.9`.
        beta_2: A float in [0, 1), the decay of the squares. Defaults to `0.999`.
        epsilon: A float >= 0, "epsilon hat" of the paper. Defaults to `1e-7`.
        amsgrad: Whether to divide by the largest average of squares so far. Defaults to `False`.
    """

    kind: ClassVar[str] = "adam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7
    amsgrad: bool = False


@dataclass(frozen=True)
class AdamW(Adam):
    """Adam with weight decay, which can't be `None`.

    Example:
    >>> AdamW(learning_rate=0.01).params(step=1)["weight_decay"]
    0.004

    Args:
        weight_decay: A float >= 0. Defaults to `0.004`. The others are those of `Adam`.
    """

    kind: ClassVar[str] = "adamw"
    weight_decay: float | None = 0.004


@dataclass(frozen=True)
class Adamax(Optimizer):
    """Adamax: Adam with a decaying maximum of the gradient in place of its average square.

    The arguments are those of `Adam` without `amsgrad`.

    Example:
    >>> Adamax(learning_rate=0.01).slot_names()
    ('momentum', 'norm')
    """

    kind: ClassVar[str] = "adamax"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7


@dataclass(frozen=True)
class Nadam(Optimizer):
    """Nadam: Adam with Nesterov momentum.

    The arguments are those of `Adam` without `amsgrad`.

    Example:
    >>> Nadam(learning_rate=0.01).slot_names()
    ('momentum', 'velocity')
    """

    kind: ClassVar[str] = "nadam"
    beta_1: float = 0.9
    beta_2: float = 0.999
    epsilon: float = 1e-7


@dataclass(frozen=True)
class RMSprop(Optimizer):
    """RMSprop: divides the gradient by the square root of the decaying average of its square.

    Example:
    >>> RMSprop(momentum=0.9, centered=True).slot_names()
    ('velocity', 'momentum', 'average_gradient')

    Args:
        rho: A float in [0, 1], the decay of the squares. Defaults to `0.9`.
        momentum: A float in [0, 1]; `0.0` means no momentum and no slot. Defaults to `0.0`.
        epsilon: A float >= 0, added under the root. Defaults to `1e-7`.
        centered: Whether to divide by the variance instead of the square. Defaults to `False`.
    """

    kind: ClassVar[str] = "rmsprop"
    rho: float = 0.9
    momentum: float = 0.0
    epsilon: float = 1e-7
    centered: bool = False


@dataclass(frozen=True)
class Adadelta(Optimizer):
    """Adadelta: RMSprop whose rate is the average size of its own steps.

    Example:
    >>> Adadelta(learning_rate=1.0).slot_names()
    ('accumulated_grad', 'accumulated_delta_var')

    Args:
        learning_rate: A float >= 0; the paper uses `1.0`. Defaults to `0.001`.
        rho: A float in [0, 1], the decay of both averages. Defaults to `0.95`.
        epsilon: A float >= 0, added under the roots. Defaults to `1e-7`.
    """

    kind: ClassVar[str] = "adadelta"
    rho: float = 0.95
    epsilon: float = 1e-7


@dataclass(frozen=True)
class Ftrl(Optimizer):
    """FTRL: follow the regularized leader, which keeps rare features at exactly zero.

    Example:
    >>> Ftrl(learning_rate=0.1, l1_regularization_strength=0.01).slot_names()
    ('accumulator', 'linear')

    Args:
        learning_rate: A float > 0. Defaults to `0.001`.
        learning_rate_power: A float <= 0. Defaults to `-0.5`, for which the engine is fastest.
        initial_accumulator_value: A float >= 0, the initial sum of squares. Defaults to `0.1`.
        l1_regularization_strength: A float >= 0. Defaults to `0.0`.
        l2_regularization_strength: A float >= 0. Defaults to `0.0`.
        l2_shrinkage_regularization_strength: A float >= 0, an L2 penalty. Defaults to `0.0`.
        beta: A float >= 0, the beta of the paper. Defaults to `0.0`.
    """

    kind: ClassVar[str] = "ftrl"
    _ranges = Optimizer._ranges | {"learning_rate": _POSITIVE}
    learning_rate_power: float = -0.5
    initial_accumulator_value: float = 0.1
    l1_regularization_strength: float = 0.0
    l2_regularization_strength: float = 0.0
    l2_shrinkage_regularization_strength: float = 0.0
    beta: float = 0.0


@dataclass(frozen=True)
class Lion(Optimizer):
    """Lion: steps of the learning rate in the direction of the sign of the momentum.

    Example:
    >>> Lion(learning_rate=1e-4).slot_names()
    ('momentum',)

    Args:
        beta_1: A float in (0, 1], the share of the momentum in a step. Defaults to `0.9`.
        beta_2: A float in [0, 1], the decay of the momentum. Defaults to `0.99`.
    """

    kind: ClassVar[str] = "lion"
    _ranges = Optimizer._ranges | {"beta_1": _UNIT_ABOVE_ZERO, "beta_2": _UNIT}
    beta_1: float = 0.9
    beta_2: float = 0.99


_BY_KIND: dict[str, type[Optimizer]] = {
    cls.kind: cls
    for cls in (
        SGD, Adagrad, RowwiseAdagrad, Adam, AdamW, Adamax, Nadam, RMSprop, Adadelta, Ftrl, Lion,
    )
}  # fmt: skip


def get(identifier: Optimizer | str | None, what: str = "identifier") -> Optimizer | None:
    """Returns the optimizer that `identifier` stands for; `None` for `None`.

    Example:
    >>> get("adam") == Adam()
    True

    Args:
        identifier: An `Optimizer`, `None`, or a name in upper or lower case, for an optimizer with
            default arguments.
        what: The name of the argument in errors.
    """
    if identifier is None or isinstance(identifier, Optimizer):
        return identifier
    if not isinstance(identifier, str):
        raise TypeError(_expected(what, "an `Optimizer`, a string or None", identifier))
    for kind, cls in _BY_KIND.items():
        if identifier.lower().replace("_", "") == kind.replace("_", ""):
            return cls()
    raise ValueError(_expected(what, f"one of {_names()}", identifier))


def _check_clipping(clipnorm: float | None, clipvalue: float | None) -> None:
    if clipnorm is not None and clipvalue is not None:
        raise ValueError(
            "Only one of `clipnorm` and `clipvalue` can be set. "
            f"Received: clipnorm={clipnorm}, clipvalue={clipvalue}"
        )


def _is_finite(value: Any) -> bool:
    if isinstance(value, bool) or not isinstance(value, numbers.Real):
        return False
    try:
        return math.isfinite(value)
    except OverflowError:  # An int that is too large for a float.
        return False


def _names() -> str:
    return ", ".join(cls.__name__ for cls in _BY_KIND.values())


def _expected(name: str, expected: str, value: object) -> str:
    return f"`{name}` must be {expected}. Received: {name}={value!r}"
