"""Compares the arguments of `get_variable` with those of the existing Variable."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable
from typing import Any

import numpy as np

from tfra.admission import Admission
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._tables.creators import KVCreator


def same(one: Any, other: Any) -> bool:
    """Whether two arguments mean the same, as far as this can be decided."""
    if one is other or (isinstance(one, Admission) and one == other):
        return True
    if isinstance(one, KVCreator):
        return type(one) is type(other) and one.config == other.config
    # A class of initializers means an instance made without arguments.
    one, other = (it() if isinstance(it, type) else it for it in (one, other))
    if hasattr(one, "get_config") and hasattr(other, "get_config"):
        return type(one) is type(other) and one.get_config() == other.get_config()
    if callable(one) or callable(other):
        return type(one) is type(other) and _same_function(one, other)
    if tf.is_symbolic_tensor(one) or tf.is_symbolic_tensor(other):
        return type(one) is type(other)
    ones, others = np.asarray(one), np.asarray(other)
    return np.array_equal(ones, others, equal_nan=ones.dtype.kind == others.dtype.kind == "f")


def _same_function(one: Any, other: Any) -> bool:
    """Whether two functions do the same: a lambda in a loop is a new object each time."""
    if isinstance(one, functools.partial):
        return (
            _same_function(one.func, other.func)
            and _all_same(one.args, other.args)
            and _same_by_name(one.keywords, other.keywords)
        )
    if inspect.ismethod(one):
        return one == other
    if not inspect.isfunction(one):
        return one is other
    return (
        _code(one) == _code(other)
        and _all_same(_captured(one), _captured(other))
        and _all_same(one.__defaults__ or (), other.__defaults__ or ())
        and _same_by_name(one.__kwdefaults__ or {}, other.__kwdefaults__ or {})
    )


def _all_same(ones: Iterable[Any], others: Iterable[Any]) -> bool:
    ones, others = list(ones), list(others)
    return len(ones) == len(others) and all(map(same, ones, others))


def _same_by_name(ones: dict[str, Any], others: dict[str, Any]) -> bool:
    return ones.keys() == others.keys() and all(same(ones[name], others[name]) for name in ones)


def _code(function: Any) -> tuple[Any, ...]:
    code = function.__code__
    # Compare inner functions by their code only, not by where they are in the source.
    constants = [c.co_code if inspect.iscode(c) else c for c in code.co_consts]
    return code.co_code, constants, code.co_names


def _captured(function: Any) -> list[Any]:
    """Returns the variables that a function captures, except the function itself."""
    captured = inspect.getclosurevars(function).nonlocals.values()
    return [value for value in captured if value is not function]
