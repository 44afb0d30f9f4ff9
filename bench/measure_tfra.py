"""Measures `tfra.Table`, and NumPy's gather from a dense array for orientation."""

from __future__ import annotations

from collections.abc import Iterator
from importlib.metadata import version

import numpy as np
import workloads
from workloads import Array, Plan, Record, Session

import tfra


class Table:
    """A `tfra.Table` with the interface of the workloads."""

    def __init__(self, plan: Plan) -> None:
        self._table = tfra.Table(dim=plan.dim, key_dtype="int64", value_dtype="float32")
        self._out = np.empty((plan.batch, plan.dim), dtype=np.float32)
        self.upsert = self._table.upsert
        self.lookup = self._table.lookup

    def lookup_out(self, keys: Array) -> Array:
        """Looks up into an array that is reused from call to call."""
        out = self._out[: keys.size]
        self._table.lookup(keys, out=out)
        return out


class Adapter:
    """The system `tfra`; its own array type is the NumPy array."""

    system = "tfra"
    mode = "numpy"

    def __init__(self, plan: Plan) -> None:
        tfra.set_num_threads(plan.threads)
        self._plan = plan
        self.versions = {"tfra": version("tfra"), "numpy": np.__version__}

    def new_table(self) -> Table:
        """Returns an empty table."""
        return Table(self._plan)

    def native(self, array: Array) -> Array:
        """Returns `array`."""
        return array

    def numpy(self, result: Array) -> Array:
        """Returns `result`."""
        return result


class Gather:
    """`np.take` from a dense array, without a table. NumPy uses one thread."""

    system = "numpy"
    mode = "np.take"

    def __init__(self) -> None:
        self.versions = {"numpy": np.__version__}

    def run(self, session: Session) -> Iterator[Record]:
        """Measures lookup by row number, into new arrays and into a reused one."""
        plan = session.plan
        session.version[:] = 0
        dense = np.empty((plan.keys, plan.dim), dtype=np.float32)
        for index in session.in_order():
            dense[index] = session.expected(index)
        out = np.empty((plan.batch, plan.dim), dtype=np.float32)

        def take(index: Array) -> Array:
            return np.take(dense, index, axis=0)

        def take_out(index: Array) -> Array:
            # Any mode but "raise" lets NumPy write to `out` directly.
            return np.take(dense, index, axis=0, out=out[: index.size], mode="clip")

        for workload, call in (("lookup", take), ("lookup_out", take_out)):
            rates, checksum = session.time_lookups(call, np.asarray, np.asarray)
            fields = workloads.rates_fields(rates)
            yield workloads.record(self, plan, workload, checksum, **fields)


def main() -> None:
    """Prints one line of JSON per workload and number of keys."""
    arguments = workloads.argument_parser(__doc__).parse_args()
    for plan in workloads.plans(arguments):
        session = Session(plan)
        workloads.emit(workloads.run(Adapter(plan), session))
        workloads.emit(Gather().run(session))


if __name__ == "__main__":
    main()
