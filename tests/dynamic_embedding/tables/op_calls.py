"""Calls of every op of the library, right ones and wrong ones.

The checks run in a process of their own (see test_ops.py), so that a crash is a failure with a
message. Each prints a line for every wrong call that was not refused as it should be.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import tensorflow as tf
from tensorflow.python.framework import op_def_registry

import tfra
from tfra.dynamic_embedding._platform.tf import ANONYMOUS, ops

Array = np.ndarray
Inputs = dict[str, Any]

TABLE = tfra.TableSpec(
    dim=4,
    metadata=True,
    admission=tfra.admission.MinCount(2),
    max_capacity=1000,
    evict_strategy="epochlfu",
)
KEYS = np.array([1, 2, 7], np.int64)
ROWS = np.arange(12, dtype=np.float32).reshape(3, 4)
ROW = np.ones(4, np.float32)
MASK = np.array([True, True, False])
SCORES = np.array([1, 2, 3], np.int64)
SPLITS = np.array([0, 1, 3], np.int64)
WEIGHTS = np.ones(3, np.float32)


def scalar(number: Any, dtype: Any = np.int64) -> Array:
    return np.array(number, dtype)


@dataclass
class Call:
    """A correct call of an op. `table` and `tables` are added if the op has them."""

    inputs: Inputs = field(default_factory=dict)
    attributes: dict[str, Any] = field(default_factory=dict)
    free: tuple[str, ...] = ()  # Inputs that may have any shape.
    may_be_empty: tuple[str, ...] = ()  # Inputs that may be empty instead.
    any_type: tuple[str, ...] = ()  # Attributes that may be other types.
    any_width: tuple[str, ...] = ()  # Inputs whose rows may have any length.
    any_rank: tuple[str, ...] = ()  # Inputs of one element that need not be scalars.


def keys_only(**attributes: Any) -> Call:
    return Call({"keys": KEYS}, attributes, free=("keys",))


def rows_of_keys(**inputs: Any) -> Call:
    return Call({"keys": KEYS, "values": ROWS, **inputs, "scores": [SCORES]})


def lookup(*defaults: Array, **attributes: Any) -> Call:
    return Call(
        {"keys": KEYS, "row": ROW, "defaults": list(defaults)},
        {"initial": False, **attributes},
        free=() if defaults else ("keys",),
    )


ADAM = {"rule": tfra.optimizers.Adam().rule().to_json()}
SLOTS = np.ones((3, 8), np.float32)
POOLED = {"row_splits": SPLITS, "weights": WEIGHTS}
SUM = {"combiner": "sum"}
TK_TV = {"Tk": tf.int64, "Tv": tf.float32}

# By the name of the op; after a colon, which of several calls of one op it is.
CALLS: dict[str, Call] = {
    "TfraTableCreate": Call(attributes={"spec": TABLE.to_json()}),
    "TfraTableHandle": Call(),
    "TfraLookup": lookup(),
    "TfraLookup:exists": lookup(with_exists=1),
    "TfraLookup:defaults": lookup(ROWS),
    "TfraLookup:defaults, exists": lookup(ROWS, with_exists=1),
    "TfraLookup:initial": lookup(initial=True),
    "TfraLookup:initial, exists": lookup(initial=True, with_exists=1),
    "TfraLookupPooled": Call(
        {"keys": KEYS, **POOLED, "row": ROW}, {**SUM, "initial": False, "Ts": tf.float32},
        may_be_empty=("weights",)),
    "TfraPoolRows": Call({"rows": ROWS, **POOLED}, {**SUM, "Ts": tf.float32},
                         may_be_empty=("weights",), any_type=("Tv",), any_width=("rows",)),
    "TfraSumGradients": Call({"keys": KEYS, "gradients": ROWS}, {"Ts": tf.float32},
                             any_type=("Tk", "Tg"), any_width=("gradients",)),
    "TfraPooledGradient": Call({"keys": KEYS, **POOLED, "gradients": ROWS[:2]}, SUM,
                               may_be_empty=("weights",), any_type=("Tk", "Ts"),
                               any_width=("gradients",)),
    "TfraInsert": rows_of_keys(),
    "TfraRestore": Call(
        {"keys": KEYS, "values": ROWS, "slots": SLOTS, "metadata": np.ones((3, 2), np.int32),
         "scores": SCORES, "rule": np.array(["adam"], object), "epoch": scalar([1, 1]),
         "waiting_keys": KEYS + 10, "waiting_seen": np.ones((3, 2), np.int32),
         "waiting_filter": np.zeros(0, np.int8), "sum_keys": KEYS, "sums": ROWS,
         "partitions": scalar([0, 1, 0], np.int32),
         "waiting_partitions": scalar([1, 0, 0], np.int32)},
        {"first_partition": 0, "partition_count": 2, "in_place": False},
        # Tables without scores and epochs save none.
        free=("waiting_filter",), may_be_empty=("scores", "epoch")),
    "TfraCommitRestore": Call({"handles": np.zeros(0, np.int64)}, {"drop": True},
                              may_be_empty=("handles",)),
    "TfraKeepMetadata": Call(),
    "TfraAccumulate": Call({"keys": KEYS, "values_or_deltas": ROWS, "exists": MASK,
                            "scores": [SCORES]}),
    "TfraRemove": keys_only(),
    "TfraEvict": keys_only(),
    "TfraClear": Call(),
    "TfraShrink": Call(),
    "TfraSize": Call(),
    "TfraExport": Call(attributes=TK_TV),
    "TfraContent": Call(attributes={**TK_TV, "Ts": tf.float32}),
    "TfraTrainableRows": Call({"keys": KEYS, "rows": ROWS}, any_type=("Tk", "Tv"),
                              any_width=("rows",)),
    "TfraTrainablePooled": Call({"keys": KEYS, **POOLED, "values": ROWS[:2]},
                                {**SUM, "value_dtype": tf.float32}, may_be_empty=("weights",),
                                any_type=("Tk", "Ts", "value_dtype"), any_width=("values",)),
    "TfraBind": Call({"step": scalar(1)}, {"optimizer": "a", "optimizer_name": "a", "worker": "",
                                            "table_name": "t", "keeps": "slots"}),
    "TfraApplyGradients": Call(
        {"keys": KEYS, "gradients": ROWS, "learning_rate": scalar(0.1, np.float64),
         "step": scalar(1), "scores": [SCORES]}, {**ADAM, "params": "{}"}),
    "TfraLookupRows": Call({"keys": KEYS, "like_row": ROW}, {**ADAM, "Ts": tf.float32},
                           free=("keys",)),
    "TfraPeekRows": Call({"keys": KEYS, "like_row": ROW},
                         {"rule": '{"kind": "none"}', "optimizer": "a", "Ts": tf.float32},
                         free=("keys",)),
    "TfraAssignRows": Call({"keys": KEYS, "values": ROWS, "slots": SLOTS, "scores": [SCORES]},
                           ADAM),
    "TfraAddToRows": Call({"keys": KEYS, "values": ROWS, "slots": SLOTS, "scores": [SCORES]},
                          ADAM),
    "TfraTouch": keys_only(),
    "TfraLookupMetadata": keys_only(),
    "TfraRestrict": Call({"keep": scalar(1)}, {"ranking": "newest"}),
    "TfraExpire": Call({"ttl": scalar(10), "min_norm": scalar(0.0, np.float64),
                        "norm_writes": scalar(1)}),
    "TfraStats": Call(),
    "TfraHistograms": Call(),
    "TfraSetClock": Call({"now": scalar(1000)}),
    "TfraExportBatch": Call({"cursor": scalar([0, 0, 0]), "max_rows": scalar(10)}, TK_TV),
    "TfraExportScores": Call(attributes=TK_TV),
    "TfraExportKeysAndScores": Call({"split_size": scalar(10)}, {"Tk": tf.int64}),
    "TfraInsertAndEvict": rows_of_keys(),
    "TfraFindOrInsert": Call({"keys": KEYS, "defaults": ROWS, "initial": np.array(False),
                              "scores": [SCORES]}),
    "TfraAssignExisting": rows_of_keys(),
    "TfraAssignScores": Call({"keys": KEYS, "scores": SCORES}),
    "TfraLookupScores": keys_only(),
    "TfraContains": keys_only(),
    "TfraSizeIf": Call({"at_least": scalar(1), "below": [scalar(5)]}),
    "TfraEraseIf": Call({"at_least": scalar(1), "below": [scalar(5)]}),
    "TfraExportIf": Call({"at_least": scalar(1), "below": [scalar(5)]}, TK_TV),
    "TfraReserve": Call({"keys": scalar(10)}),
    "TfraSetEpoch": Call({"epoch": scalar(1)}),
    "TfraEpoch": Call(),
    "TfraTableCount": Call(),
}  # fmt: skip


def calls() -> Iterator[tuple[str, Call]]:
    """The names of ops with their right calls."""
    for name, call in CALLS.items():
        yield name.partition(":")[0], call


def op_names() -> list[str]:
    """Every op of the library: TensorFlow makes a class or function for each."""
    return sorted(name for name in dir(ops) if name.startswith("Tfra"))


def definition(op: str) -> Any:
    return op_def_registry.get(op)


def new_handle() -> tf.Tensor:
    return tf.raw_ops.VarHandleOp(shared_name=ANONYMOUS, dtype=tf.int64, shape=[1])


def new_table(**changes: Any) -> tf.Tensor:
    """A table with two rows. Its handle keeps it."""
    spec = dataclasses.replace(TABLE, **changes)
    handle = new_handle()
    token = ops.tfra_table_create(handle, spec=spec.to_json())
    tf.raw_ops.AssignVariableOp(resource=handle, value=token)
    keys = tf.constant(["1", "2"]) if spec.key_dtype == "string" else [1, 2]
    rows = np.full((2, spec.dim), "a" if spec.value_dtype == "string" else 1)
    rows = tf.constant(rows) if spec.value_dtype == "string" else tf.cast(rows, spec.value_dtype)
    ops.tfra_insert(handle, tf.constant(keys, spec.key_dtype), rows, [])
    return handle


def content(handle: tf.Tensor) -> Any:
    """The rule of a table, and its rows, scores and metadata."""
    rule = ops.tfra_content([handle], **TK_TV, Ts=tf.float32).rule.numpy().tolist()
    keys, rows, scores = (t.numpy() for t in ops.tfra_export_scores([handle], **TK_TV))
    known = ops.tfra_lookup_metadata(handle, keys)
    columns = [rows.tolist(), scores.tolist(), *(t.numpy().tolist() for t in known)]
    return rule, sorted(zip(keys.tolist(), *columns, strict=True))


def arguments_of(op: str, call: Call, handle: tf.Tensor) -> Inputs:
    """The inputs of a right call, by name."""
    inputs: Inputs = {}
    for argument in definition(op).input_arg:
        name = argument.name
        if name == "tables":
            inputs[name] = [handle]
        elif name in ("table", "shadow"):
            inputs[name] = handle
        else:
            inputs[name] = call.inputs[name]
    return inputs


def run(op: str, inputs: Inputs, attributes: dict[str, Any]) -> Any:
    wrapper = getattr(ops, re.sub(r"(?<!^)(?=[A-Z])", "_", op).lower())
    return wrapper(**inputs, **attributes)


def wrong_shapes(right: Array) -> Iterator[Array]:
    """Arrays of the same dtype and other shapes."""
    if right.shape != (0,):
        yield np.zeros(0, right.dtype)
    yield right[np.newaxis]
    yield right[..., np.newaxis]
    yield np.stack([right, right])
    if right.ndim == 0:
        return
    yield np.array(right.reshape(-1)[0] if right.size else 0, right.dtype)
    yield right[:-1]
    yield np.concatenate([right, right[:1]])
    if right.ndim > 1:
        yield right[:, :-1]
        yield np.concatenate([right, right[:, :1]], axis=1)
        yield right.reshape(-1)


def wrong_handles(handle: tf.Tensor) -> Iterator[tf.Tensor]:
    one = tf.reshape(handle, [1])
    yield one
    yield tf.reshape(handle, [1, 1])
    yield tf.boolean_mask(one, [False])


def wrong_inputs(op: str, call: Call, right: Inputs) -> Iterator[tuple[str, Inputs]]:
    """Names of inputs, and the inputs of a call in which these have a wrong shape."""
    for name, value in right.items():
        if name in call.free or is_empty(value):
            continue
        is_list = isinstance(value, list)
        one = value[0] if is_list else value
        for wrong in wrong_handles(one) if tf.is_tensor(one) else wrong_shapes(np.asarray(one)):
            right_shape, shape = tuple(one.shape), tuple(wrong.shape)
            if (
                (name in call.may_be_empty and 0 in shape)
                or (name in call.any_width and shape[:-1] == right_shape[:-1])
                or (name in call.any_rank and shape in ((), (1,)))
            ):
                continue
            yield name, {**right, name: [wrong] if is_list else wrong}


def problem_of(op: str, name: str, do: Callable[[], Any]) -> str | None:
    """What is wrong with the outcome of a wrong call; None if it was refused correctly."""
    try:
        do()
    except tf.errors.InvalidArgumentError as error:
        if "Empty resource handle" in str(error):  # TensorFlow's own check.
            return None
        named = re.findall(r"`(\w+)`", str(error))
        # Others have to agree with these: they may be named as well.
        leading = ("keys", "row_splits", "rows", "rule", "waiting_keys", "sum_keys")
        others = [argument.name for argument in definition(op).input_arg]
        expected = others if name in leading else [name]
        if any(one in expected for one in named):
            return None
        return f"{op}: wrong `{name}` is not named: {error}"
    except Exception as error:
        return f"{op}: wrong `{name}`: {type(error).__name__}: {error}"
    return f"{op}: wrong `{name}` was accepted"


def shape_of(value: Any) -> Any:
    return shape_of(value[0]) if isinstance(value, list) else tuple(value.shape)


def check_right_calls() -> list[str]:
    """Every op is here, and its correct calls work."""
    problems = [f"{op}: no call of it in CALLS" for op in op_names() if op not in dict(calls())]
    for op, call in calls():
        try:
            run(op, arguments_of(op, call, new_table()), call.attributes)
        except Exception as error:
            problems.append(f"{op}: the right call fails: {type(error).__name__}: {error}")
    return problems


def check_wrong_shapes() -> list[str]:
    problems = []
    for op, call in calls():
        handle = new_table()
        before = content(handle)
        for name, inputs in wrong_inputs(op, call, arguments_of(op, call, handle)):
            print(op, name, shape_of(inputs[name]), flush=True)
            problem = problem_of(
                op, name, lambda op=op, i=inputs, call=call: run(op, i, call.attributes)
            )
            if problem is None and content(handle) != before:
                problem = f"{op}: wrong `{name}` changed the table"
            if problem is not None:
                problems.append(f"{problem} (shape {shape_of(inputs[name])})")
                handle = new_table()
                before = content(handle)
    return problems


def check_unknown_shapes() -> list[str]:
    """The same in functions of which no shape is known when they are traced."""
    problems = []
    for op, call in calls():
        handle = new_table()
        right = arguments_of(op, call, handle)
        fed = {n: value for n, value in right.items() if n in call.inputs and not is_empty(value)}

        try:
            concrete = of_unknown_shapes(op, call.attributes, right, fed)
        except Exception as error:
            problems.append(f"{op}: can't be traced: {type(error).__name__}: {error}")
            continue
        for name, inputs in wrong_inputs(op, call, fed):
            print("graph", op, name, shape_of(inputs[name]), flush=True)
            tensors = {n: tf.constant(flat(value)) for n, value in inputs.items()}
            problem = problem_of(op, name, lambda c=concrete, t=tensors: c(**t))
            if problem is not None:
                problems.append(f"in a graph: {problem} (shape {shape_of(inputs[name])})")
        try:
            concrete(**{n: tf.constant(flat(value)) for n, value in fed.items()})
        except Exception as error:
            problems.append(f"in a graph: {op}: the right call fails: {error}")
    return problems


def of_unknown_shapes(
    op: str, attributes: dict[str, Any], right: Inputs, fed: Inputs
) -> Callable[..., Any]:
    """A function of some inputs, by name, of which only the types are known."""

    @tf.function
    def traced(**tensors: tf.Tensor) -> Any:
        lists = {
            name: [tensor] if isinstance(right[name], list) else tensor
            for name, tensor in tensors.items()
        }
        result = run(op, {**right, **lists}, attributes)
        return None if isinstance(result, tf.Operation) else result

    specs = {n: tf.TensorSpec(None, tf.constant(flat(v)).dtype) for n, v in fed.items()}
    return traced.get_concrete_function(**specs)


def is_empty(value: Any) -> bool:
    """Whether this is an optional input that is left out."""
    return isinstance(value, list) and not value


def flat(value: Any) -> Any:
    return value[0] if isinstance(value, list) else value


def check_wrong_types() -> list[str]:
    """Types other than the table's: of inputs, and of outputs by attributes."""
    problems = []
    for op, call in calls():
        for attribute in definition(op).attr:
            if attribute.type != "type" or attribute.name in call.any_type:
                continue
            name = attribute.name
            handle = new_table()
            right = arguments_of(op, call, handle)
            typed = [a.name for a in definition(op).input_arg if a.type_attr == name]
            typed = [n for n in typed if not is_empty(right[n])]
            present = tf.as_dtype(np.asarray(flat(right[typed[0]])).dtype) if typed else (
                call.attributes[name])  # fmt: skip
            for number in attribute.allowed_values.list.type:
                dtype = tf.as_dtype(number)
                if dtype == present:
                    continue
                inputs = {**right, **{n: cast(right[n], dtype) for n in typed}}
                attributes = call.attributes | ({} if typed else {name: dtype})
                print(op, name, dtype.name, flush=True)
                before = content(handle)
                try:
                    run(op, inputs, attributes)
                except tf.errors.InvalidArgumentError:
                    if content(handle) != before:
                        problems.append(f"{op}: {name}={dtype.name} changed the table")
                    continue
                except Exception as error:
                    problems.append(f"{op}: {name}={dtype.name}: {type(error).__name__}: {error}")
                    continue
                problems.append(f"{op}: {name}={dtype.name} was accepted")
    return problems


def check_wrong_numbers() -> list[str]:
    """Numbers that are out of range. The table keeps its rule."""
    problems = []
    apply_gradients = CALLS["TfraApplyGradients"]
    for name, number in (
        ("step", scalar(0)),
        ("step", scalar(-1)),
        ("learning_rate", scalar(-0.1, np.float64)),
        ("learning_rate", scalar(np.nan, np.float64)),
        ("scores", [-SCORES]),
    ):
        handle = new_table()
        before = content(handle)
        right = arguments_of("TfraApplyGradients", apply_gradients, handle)
        problem = problem_of(
            "TfraApplyGradients",
            name,
            lambda i={**right, name: number}: run(
                "TfraApplyGradients", i, apply_gradients.attributes
            ),
        )
        if content(handle) != before:
            problem = f"wrong `{name}` changed the table"
        problems += [f"{problem} ({number})"] if problem else []
    return problems


def cast(array: Array | list[Array], dtype: tf.DType) -> Any:
    if isinstance(array, list):
        return [cast(one, dtype) for one in array]
    return tf.as_string(array) if dtype == tf.string else tf.cast(array, dtype)


def check_lists() -> list[str]:
    """Tables that can't be exported together, and lists that have more than one entry."""
    problems = []
    others = {
        "dim": {"dim": 2},
        "values": {"value_dtype": "float64"},
        "strings": {"value_dtype": "string"},
        "keys": {"key_dtype": "string"},
        "narrow keys": {"key_dtype": "int32"},
        "bound": {"max_capacity": None, "evict_strategy": "lru"},
        "metadata": {"metadata": False},
    }
    # What an op does not use may differ.
    harmless = {
        "TfraExport": ("bound", "metadata"),
        "TfraExportScores": ("metadata",),
        "TfraExportKeysAndScores": ("metadata",),
        # Rows get metadata table by table.
        "TfraContent": ("metadata",),
        "TfraRestore": ("metadata",),
    }
    for op, call in calls():
        if "tables" not in [argument.name for argument in definition(op).input_arg]:
            continue
        for other, changes in others.items():
            if other in harmless.get(op, ()):
                continue
            handles = [new_table(), new_table(**changes)]
            for order in (handles, handles[::-1]):
                inputs = {**arguments_of(op, call, handles[0]), "tables": order}
                print(op, other, flush=True)
                try:
                    run(op, inputs, call.attributes)
                except tf.errors.InvalidArgumentError as error:
                    if "`tables`" not in str(error) and order is handles:
                        problems.append(f"{op}: tables of another {other}: {error}")
                    continue
                problems.append(f"{op}: tables of another {other} were accepted")
    for op, call in calls():
        for name, value in call.inputs.items():
            if isinstance(value, list) and value:
                handle = new_table()
                inputs = {**arguments_of(op, call, handle), name: value * 2}
                problem = problem_of(
                    op, name, lambda op=op, i=inputs, call=call: run(op, i, call.attributes)
                )
                problems += [f"{problem} (two of them)"] if problem else []
    return problems
