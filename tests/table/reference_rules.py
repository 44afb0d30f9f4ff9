"""The update rules in NumPy, written from their definitions, to test the engine against.

Nothing here comes from the engine: the recurrences are spelled out over whole matrices, and bias
corrections are products over the steps instead of closed forms.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np

Array = np.ndarray
Slots = dict[str, Array]

_COMMON = {"learning_rate": 0.001, "weight_decay": None, "clipnorm": None, "clipvalue": None}
_ADAM = {"beta_1": 0.9, "beta_2": 0.999, "epsilon": 1e-7}

# The hyper-parameters of each rule and their defaults in Keras 3.
DEFAULTS: dict[str, dict[str, float | bool | None]] = {
    "sgd": {**_COMMON, "learning_rate": 0.01, "momentum": 0.0, "nesterov": False},
    "adagrad": {**_COMMON, "initial_accumulator_value": 0.1, "epsilon": 1e-7},
    "rowwise_adagrad": {**_COMMON, "initial_accumulator_value": 0.1, "epsilon": 1e-7},
    "adam": {**_COMMON, **_ADAM, "amsgrad": False},
    "adamw": {**_COMMON, **_ADAM, "amsgrad": False, "weight_decay": 0.004},
    "adamax": {**_COMMON, **_ADAM},
    "nadam": {**_COMMON, **_ADAM},
    "rmsprop": {**_COMMON, "rho": 0.9, "momentum": 0.0, "epsilon": 1e-7, "centered": False},
    "adadelta": {**_COMMON, "rho": 0.95, "epsilon": 1e-7},
    "ftrl": {
        **_COMMON,
        "learning_rate_power": -0.5,
        "initial_accumulator_value": 0.1,
        "l1_regularization_strength": 0.0,
        "l2_regularization_strength": 0.0,
        "l2_shrinkage_regularization_strength": 0.0,
        "beta": 0.0,
    },
    "lion": {**_COMMON, "beta_1": 0.9, "beta_2": 0.99},
}


def to_bfloat16(x: Array) -> Array:
    """Rounds float32 to the nearest bfloat16 (ties to even), still as float32."""
    bits = np.ascontiguousarray(x, np.float32).view(np.uint32)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> np.uint32(16)) & np.uint32(1))) & np.uint32(
        0xFFFF0000
    )
    return rounded.view(np.float32)


class Reference:
    """One update rule over matrices of rows.

    Example:

    >>> rule = Reference("adam", dim=4, value_dtype="float32", learning_rate=0.1)
    >>> slots = rule.slots(3)
    >>> values, slots = rule.step(np.ones((3, 4)), slots, np.ones((3, 4)), step=1)

    Args:
        name: One of the keys of `DEFAULTS`.
        dim: Elements of a row.
        value_dtype: "float32", "float16", "bfloat16" or "float64". bfloat16 values are given and
            returned as float32 arrays.
        compute_dtype: What the arithmetic and the slots use. `None` is what the engine uses:
            float64 for float64 values, else float32. Pass "float64" for a more exact reference.
        **hyper: The rule's hyper-parameters, under their Keras names.
    """

    def __init__(
        self,
        name: str,
        dim: int,
        value_dtype: object,
        compute_dtype: object = None,
        **hyper: object,
    ) -> None:
        unknown = set(hyper) - set(DEFAULTS[name])
        if unknown:
            raise TypeError(f"{name} has no {sorted(unknown)}. Expected: {sorted(DEFAULTS[name])}")
        self.name = name
        self.dim = dim
        # A string stays a string: NumPy alone has no dtype "bfloat16".
        self.value_dtype = str(
            value_dtype if isinstance(value_dtype, str) else np.dtype(value_dtype)
        )
        wide = self.value_dtype == "float64"
        self.dtype = np.dtype(compute_dtype or ("float64" if wide else "float32"))
        self.hyper = {**DEFAULTS[name], **hyper}

    def slots(self, n: int) -> Slots:
        """The initial slots of `n` rows, in the order of memory: (n, dim), or (n, 1) row-wise."""
        h = self.hyper

        def full(initial: float = 0.0, width: int = self.dim) -> Array:
            return np.full((n, width), initial, self.dtype)

        slots: Slots = {}
        if self.name == "sgd":
            if h["momentum"]:
                slots["momentum"] = full()
        elif self.name == "adagrad":
            slots["accumulator"] = full(h["initial_accumulator_value"])
        elif self.name == "rowwise_adagrad":
            slots["accumulator"] = full(h["initial_accumulator_value"], width=1)
        elif self.name in ("adam", "adamw", "nadam"):
            slots["momentum"] = full()
            slots["velocity"] = full()
            if h.get("amsgrad"):
                slots["velocity_hat"] = full()
        elif self.name == "adamax":
            slots["momentum"] = full()
            slots["norm"] = full()
        elif self.name == "rmsprop":
            slots["velocity"] = full()
            if h["momentum"]:
                slots["momentum"] = full()
            if h["centered"]:
                slots["average_gradient"] = full()
        elif self.name == "adadelta":
            slots["accumulated_grad"] = full()
            slots["accumulated_delta_var"] = full()
        elif self.name == "ftrl":
            slots["accumulator"] = full(h["initial_accumulator_value"])
            slots["linear"] = full()
        elif self.name == "lion":
            slots["momentum"] = full()
        return slots

    def step(self, values: Array, slots: Slots, gradients: Array, step: int) -> tuple[Array, Slots]:
        """Values (n, dim) and slots after one update; the arguments are not changed.

        `step` counts from 1.
        """
        w = np.asarray(values).astype(self.dtype)
        g = self._clip(np.asarray(gradients).astype(self.dtype))
        h = self.hyper
        if h["weight_decay"]:
            w = w - w * self._c(h["weight_decay"]) * self._c(h["learning_rate"])
        rule: Callable[..., tuple[Array, Slots]] = getattr(self, "_" + self.name)
        with np.errstate(under="ignore", over="ignore"):
            w, new_slots = rule(w, g, slots, step)
            return self._store(w), new_slots

    def _c(self, number: float) -> np.floating:
        return self.dtype.type(number)

    def _store(self, w: Array) -> Array:
        if self.value_dtype == "bfloat16":
            return to_bfloat16(w)
        return w.astype(self.value_dtype)

    def _clip(self, g: Array) -> Array:
        if self.hyper["clipnorm"]:
            bound = self._c(self.hyper["clipnorm"])
            norm = np.sqrt(np.sum(g * g, axis=1, keepdims=True))
            return g * (bound / np.maximum(norm, bound))
        if self.hyper["clipvalue"]:
            return np.clip(g, -self._c(self.hyper["clipvalue"]), self._c(self.hyper["clipvalue"]))
        return g

    def _sgd(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        lr, mu = self._c(self.hyper["learning_rate"]), self._c(self.hyper["momentum"])
        if "momentum" not in slots:
            return w - lr * g, {}
        m = mu * slots["momentum"] - lr * g
        w = w + (mu * m - lr * g if self.hyper["nesterov"] else m)
        return w, {"momentum": m}

    def _adagrad(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        lr, epsilon = self._c(self.hyper["learning_rate"]), self._c(self.hyper["epsilon"])
        a = slots["accumulator"] + g * g
        return w - lr * g / np.sqrt(a + epsilon), {"accumulator": a}

    def _rowwise_adagrad(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        lr, epsilon = self._c(self.hyper["learning_rate"]), self._c(self.hyper["epsilon"])
        a = slots["accumulator"] + np.mean(g * g, axis=1, keepdims=True)
        return w - lr * g / np.sqrt(a + epsilon), {"accumulator": a}

    def _moments(self, g: Array, slots: Slots) -> tuple[Array, Array]:
        b1, b2 = self.hyper["beta_1"], self.hyper["beta_2"]
        m = self._c(b1) * slots["momentum"] + self._c(1 - b1) * g
        v = self._c(b2) * slots["velocity"] + self._c(1 - b2) * (g * g)
        return m, v

    def _adam(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        h = self.hyper
        m, v = self._moments(g, slots)
        new = {"momentum": m, "velocity": v}
        if "velocity_hat" in slots:
            v = new["velocity_hat"] = np.maximum(slots["velocity_hat"], v)
        # Epsilon is added before the bias correction of v ("epsilon hat" in the paper).
        rate = h["learning_rate"] * math.sqrt(1 - h["beta_2"] ** step) / (1 - h["beta_1"] ** step)
        return w - self._c(rate) * m / (np.sqrt(v) + self._c(h["epsilon"])), new

    # AdamW is Adam with another default for weight decay.
    _adamw = _adam

    def _adamax(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        h = self.hyper
        m = self._c(h["beta_1"]) * slots["momentum"] + self._c(1 - h["beta_1"]) * g
        u = np.maximum(self._c(h["beta_2"]) * slots["norm"], np.abs(g))
        rate = self._c(h["learning_rate"] / (1 - h["beta_1"] ** step))
        return w - rate * m / (u + self._c(h["epsilon"])), {"momentum": m, "norm": u}

    def _nadam(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        h = self.hyper
        schedule = [h["beta_1"] * (1 - 0.5 * 0.96**s) for s in range(1, step + 2)]
        product, next_product = math.prod(schedule[:-1]), math.prod(schedule)
        m, v = self._moments(g, slots)
        m_hat = (
            self._c(schedule[-1] / (1 - next_product)) * m
            + self._c((1 - schedule[-2]) / (1 - product)) * g
        )
        v_hat = v / self._c(1 - h["beta_2"] ** step)
        w = w - self._c(h["learning_rate"]) * m_hat / (np.sqrt(v_hat) + self._c(h["epsilon"]))
        return w, {"momentum": m, "velocity": v}

    def _rmsprop(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        h = self.hyper
        rho, one_minus_rho = self._c(h["rho"]), self._c(1 - h["rho"])
        new = {"velocity": rho * slots["velocity"] + one_minus_rho * (g * g)}
        variance = new["velocity"]
        average = None
        if "average_gradient" in slots:
            average = rho * slots["average_gradient"] + one_minus_rho * g
            # Never negative but for rounding, of which Keras makes NaN.
            variance = np.maximum(variance - average * average, 0)
        delta = self._c(h["learning_rate"]) * g / np.sqrt(variance + self._c(h["epsilon"]))
        if "momentum" in slots:
            delta = new["momentum"] = self._c(h["momentum"]) * slots["momentum"] + delta
        if average is not None:
            new["average_gradient"] = average
        return w - delta, new

    def _adadelta(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        h = self.hyper
        rho, one_minus_rho = self._c(h["rho"]), self._c(1 - h["rho"])
        epsilon = self._c(h["epsilon"])
        a = rho * slots["accumulated_grad"] + one_minus_rho * (g * g)
        delta = np.sqrt(slots["accumulated_delta_var"] + epsilon) / np.sqrt(a + epsilon) * g
        d = rho * slots["accumulated_delta_var"] + one_minus_rho * (delta * delta)
        w = w - self._c(h["learning_rate"]) * delta
        return w, {"accumulated_grad": a, "accumulated_delta_var": d}

    def _ftrl(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        h = self.hyper
        lr = self._c(h["learning_rate"])
        l1 = self._c(h["l1_regularization_strength"])
        l2 = self._c(2 * h["l2_regularization_strength"] + h["beta"] / h["learning_rate"])
        shrinkage = self._c(2 * h["l2_shrinkage_regularization_strength"])
        power = self._c(-h["learning_rate_power"])
        n = slots["accumulator"] + g * g
        sigma = (n**power - slots["accumulator"] ** power) / lr
        z = slots["linear"] + g + shrinkage * w - sigma * w
        w = np.where(np.abs(z) <= l1, self._c(0), (np.sign(z) * l1 - z) / (n**power / lr + l2))
        return w, {"accumulator": n, "linear": z}

    def _lion(self, w: Array, g: Array, slots: Slots, step: int) -> tuple[Array, Slots]:
        h = self.hyper
        direction = np.sign(self._c(h["beta_1"]) * slots["momentum"] + self._c(1 - h["beta_1"]) * g)
        m = self._c(h["beta_2"]) * slots["momentum"] + self._c(1 - h["beta_2"]) * g
        return w - self._c(h["learning_rate"]) * direction, {"momentum": m}
