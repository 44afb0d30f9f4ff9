"""Tables in TensorBoard: statistics over time, histograms of rows, and rows in the projector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tfra._shared.stats import Histogram
from tfra.dynamic_embedding._platform.tf import tf
from tfra.dynamic_embedding._saving.content import FIRST_PART
from tfra.dynamic_embedding._variable.variable import Variable

__all__ = ["export_to_projector", "write_histograms", "write_stats"]


def write_stats(variable: Variable, step: int, name: str | None = None) -> None:
    """Writes the statistics of a Variable to the default writer of `tf.summary`.

    Args:
        variable: A `Variable`.
        step: The training step.
        name: The name in TensorBoard; by default that of the Variable.

    Raises:
        ImportError: If TensorBoard is not installed.
    """
    scalar = require_tensorboard().scalar
    for figure, value in variable.stats().as_dict().items():
        scalar(f"{name or variable.name}/{figure}", value, step=step)


def write_histograms(variable: Variable, step: int, name: str | None = None) -> None:
    """Writes histograms of the norms of rows and, if keys have metadata, of their ages and counts.

    Args:
        variable: A `Variable`.
        step: The training step.
        name: The name in TensorBoard; by default that of the Variable.

    Raises:
        ImportError: If TensorBoard is not installed.
    """
    found = variable.histograms()
    for what in ("norm", "frequency", "age"):
        histogram: Histogram = getattr(found, what)
        used = np.flatnonzero(histogram.counts)
        if used.size == 0:
            continue
        ranges = slice(used[0], used[-1] + 1)
        left, right = histogram.edges[:-1][ranges], histogram.edges[1:][ranges]
        right = np.where(np.isinf(right), 2 * left, right)
        buckets = np.stack([left, right, histogram.counts[ranges].astype(np.float64)], axis=1)
        tf.summary.write(
            f"{name or variable.name}/{what}",
            tf.constant(buckets),
            step=step,
            metadata=_histogram_metadata(),
        )


def export_to_projector(
    variable: Variable,
    log_dir: str | Path,
    keys: Any = None,
    labels: Sequence[Any] | None = None,
    max_rows: int = 10_000,
) -> Path:
    """Writes rows for TensorBoard's embedding projector.

    Example:
    >>> import tempfile
    >>> variable = tfra.dynamic_embedding.Variable(dim=2)
    >>> variable.upsert([1, 2], [[1.0, 2.0], [3.0, 4.0]])
    >>> de = tfra.dynamic_embedding
    >>> folder = de.tensorboard.export_to_projector(variable, tempfile.mkdtemp())
    >>> sorted(path.name for path in folder.iterdir())
    ['labels.tsv', 'projector_config.pbtxt', 'rows.tsv']

    Args:
        variable: A `Variable`.
        log_dir: The directory with which TensorBoard is started. It is made if it does not exist.
        keys: The keys to show, in this order; by default the first ones of an export.
        labels: One label for each key; by default the keys themselves.
        max_rows: The number of keys to show if `keys` is None.

    Returns:
        The directory.

    Raises:
        ValueError: If there are labels without keys, or not one label for each key.
    """
    if labels is not None and (keys is None or len(labels) != len(keys)):
        received = "no keys" if keys is None else f"{len(keys)} keys"
        raise ValueError(
            f"`labels` must be as many as `keys`. Received: {len(labels)} labels and {received}"
        )
    if keys is None:
        parts = [table.export_part(FIRST_PART, max_rows) for table in variable.tables]
        keys = tf.concat([part[0] for part in parts], axis=0)[:max_rows]
        rows = tf.concat([part[1] for part in parts], axis=0)[:max_rows].numpy()
        keys = keys.numpy().tolist()
    else:
        rows = variable.lookup(keys).numpy()
    folder = Path(log_dir)
    folder.mkdir(parents=True, exist_ok=True)
    np.savetxt(folder / "rows.tsv", rows.astype(np.float64), fmt="%.8g", delimiter="\t")
    lines = [_text(label) for label in (keys if labels is None else labels)]
    (folder / "labels.tsv").write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
    (folder / "projector_config.pbtxt").write_text(
        f'embeddings {{\n  tensor_name: "{variable.name}"\n  tensor_path: "rows.tsv"\n'
        '  metadata_path: "labels.tsv"\n}\n',
        encoding="utf-8",
    )
    return folder


def _text(label: Any) -> str:
    text = label.decode("utf-8", "replace") if isinstance(label, bytes) else str(label)
    return " ".join(text.split()) or "(empty)"  # The file has one label in each line.


def require_tensorboard() -> Any:
    """Returns the module that writes summaries.

    Raises:
        ImportError: If TensorBoard is not installed.
    """
    try:
        from tensorboard.summary import v2
    except ImportError as error:
        raise ImportError(
            "Writing for TensorBoard needs TensorBoard, which is not installed. "
            "Install it with: pip install 'tfra[tensorboard]'"
        ) from error
    return v2


def _histogram_metadata() -> Any:
    require_tensorboard()
    from tensorboard.plugins.histogram import metadata

    return metadata.create_summary_metadata(display_name=None, description=None)
