"""The largest sizes and numbers that a table accepts. The engine defines most of them."""

from __future__ import annotations

from tfra import _native

MAX_DIM = _native.MAX_DIM  # Elements of a row.
MAX_KEYS = _native.MAX_KEYS  # Keys of a table: `capacity`, `max_capacity`, `reserve`.
MAX_THREADS = _native.MAX_THREADS
MAX_FILTER_KEYS = _native.MAX_FILTER_KEYS  # Keys that a Bloom filter is made for.
MAX_FILTER_COUNT = _native.MAX_FILTER_COUNT  # `min_count` of a Bloom filter.
MAX_UINT32 = 2**32 - 1  # Times, epochs, and numbers of writes.
MAX_TF_EPOCH = 2**31 - 1  # Epochs are the high halves of scores, which TensorFlow sees as int64.
MAX_STEP = 2**62  # Leaves room to count on without an overflow of int64.
MAX_INT64 = 2**63 - 1  # Bytes, and numbers that have no effect on memory.
MAX_SCORE = 2**64 - 1
