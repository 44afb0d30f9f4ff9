"""Writes docs/benchmarks.md, its charts and the README's table from the results in bench/results.

    python tools/bench_page.py            # writes them
    python tools/bench_page.py --check    # only says whether the files are up to date

`make docs` runs this program. A benchmark replaces the results of a kind like this:

    python bench/compare.py --json bench/results/table.json
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT / "bench"), str(ROOT / "tools")]

import compare_tiers  # noqa: E402
import compare_training  # noqa: E402
import compare_variable  # noqa: E402
from bar_chart import Bar, Scale, bar_chart  # noqa: E402

RESULTS, DOCS, README = ROOT / "bench" / "results", ROOT / "docs", ROOT / "README.md"
HEADLINE = "million keys per second ([how it was measured"
Results = dict[str, Any]
Pages = dict[Path, str]

OF_RAW = Scale((0, 0.25, 0.5, 0.75, 1), origin=0, logarithmic=False)
TIMES = Scale((0.25, 0.5, 1, 2, 4, 8, 16), origin=1, logarithmic=True, unit="x")

INTRODUCTION = """# Benchmarks

<!-- Written by tools/bench_page.py from bench/results: change those. -->

This page compares `tfra` with other libraries and with the limits of the hardware. It has the last
runs that were kept, each with its date and its machine.

- The systems of a comparison take turns in one run, each in its own processes. The page shows the
  best round of each system. The values that are read are checked.
- Compare ratios, not rates: the same program runs at a different speed on another machine, and on
  the same machine at another hour. A ratio above 1 means that `tfra` is faster, unless the table
  says otherwise.
- `bench/README.md` says what each line measures. `make bench` measures it again.
"""


def read(name: str) -> Results:
    """Returns the results of a kind, for example "table"."""
    document: Results = json.loads((RESULTS / f"{name}.json").read_text())
    return document


def best(results: Results) -> dict[tuple[int, str, str], float]:
    """Returns the best round of each workload, by (keys, workload, system)."""
    return {(s["keys"], s["workload"], s["system"]): s["best"] for s in results["summary"]}


def where(results: Results) -> str:
    """Returns when, on which machine and with which versions the results were measured."""
    words = [
        f"Measured on {results['date'][:10]}: {results['cores']} CPUs of an {results['cpu']}, "
        f"{results['memory_gib']} GiB, {results['system']}."
    ]
    versions = sorted(
        {f"{name} {v}" for of in results.get("versions", {}).values() for name, v in of.items()}
    )
    return " ".join(words + ([f"Versions: {', '.join(versions)}."] if versions else []))


def notes(results: Results) -> list[str]:
    """Returns the notes in a file of results."""
    return [f"- {note}" for note in results.get("notes", [])]


def million(keys: int) -> str:
    """Returns a number of keys as text, for example "10 million"."""
    return f"{keys / 1e6:g} million"


def table(header: list[str], rows: list[list[str]]) -> list[str]:
    """Returns the lines of a Markdown table."""
    lines = [header, ["---"] * len(header), *rows]
    return ["| " + " | ".join(line) + " |" for line in lines]


def section(
    title: str, text: str, results: Results, image: tuple[str, str], lines: list[str]
) -> list[str]:
    """Returns the lines of one section of the page."""
    alt, name = image
    picture = f"![{alt}](images/{name})"
    parts = [f"## {title}", text, where(results), picture, "\n".join(lines)]
    return ["", *"\n\n".join(parts).splitlines(), "", *notes(results)]


def engine(pages: Pages) -> list[str]:
    """Returns the section that compares the engine with raw loops."""
    results, rows, bars = read("engine"), [], []
    workloads = ["lookup", "assign existing", "insert new", "apply Adam", "mixed", "memory"]

    def place(r: Results) -> tuple[Any, ...]:
        return r["dim"] != 32, workloads.index(r["workload"]), r["dim"], r["keys"]

    for r in sorted(results["records"], key=place):
        size = f"{million(r['keys'])} keys, dim {r['dim']}"
        figure = f"{r['rate'] / 1e6:.1f} M keys/s" if "rate" in r else ""
        if "bytes_per_key" in r:
            figure = f"{r['bytes_per_key']:.1f} bytes per key"
        rows.append([r["workload"], size, figure, f"{r['ratio']:.2f}"])
        if "rate" in r:
            bars.append(Bar(f"{r['workload']}, {size}", r["ratio"]))
    pages[DOCS / "images" / "bench-engine.svg"] = bar_chart(
        "The engine and the physical limit",
        "keys per second, divided by those of a raw loop",
        bars,
        OF_RAW,
    )
    text = """The engine against a physical limit: a C++ loop with prefetching that copies the
same rows by their index, without looking up any key, on the same number of threads. A ratio of 1
is the best possible.

- `apply Adam` is compared with a loop that reads and writes the same bytes.
- `mixed` runs two readers and one writer at once. Its ratio is to the sum of what each does
  alone.
- `memory` is compared with 8 bytes for the key plus the bytes of the row. Less is better."""
    lines = table(["workload", "table", "tfra", "ratio to the limit"], rows)
    return section("Engine", text, results, ("Ratios to a raw loop", "bench-engine.svg"), lines)


def numpy_table(pages: Pages) -> list[str]:
    """Returns the section that compares `tfra.Table` with the peer."""
    results = read("table")
    figures, rows, bars = best(results), [], []
    for keys in sorted({place[0] for place in figures}):
        for workload in ("lookup", "upsert", "insert", "memory"):
            ours, peer = (figures[keys, workload, system] for system in ("tfra", "peer"))
            unit, scale = ("bytes per key", 1.0) if workload == "memory" else ("M keys/s", 1e6)
            numbers = [f"{peer / scale:.1f}", f"{ours / scale:.1f}", f"{ours / peer:.2f}x"]
            rows.append([f"{workload}, {unit}", million(keys), *numbers])
            if workload != "memory":
                bars.append(Bar(f"{workload}, {million(keys)} keys", ours / peer))
    pages[DOCS / "images" / "bench-table.svg"] = bar_chart(
        "tfra.Table and TFRA 0.8.1", "keys per second, divided by TFRA's", bars, TIMES
    )
    text = """`tfra.Table` on NumPy arrays against TensorFlow Recommenders Addons (TFRA) 0.8.1 on
TensorFlow's tensors. Rows have 32 floats, a call has 65,536 keys (`bench/compare.py`). For
memory, less is better."""
    lines = table(["workload", "keys", "TFRA", "tfra", "ratio"], rows)
    return section("Table", text, results, ("Ratios to TFRA", "bench-table.svg"), lines)


def variable(pages: Pages) -> list[str]:
    """Returns the section that compares `Variable` with the peer's and with `tf.gather`."""
    results = read("variable")
    figures, rows, bars = best(results), [], []
    for keys in sorted({place[0] for place in figures}):
        for line in compare_variable.LINES:
            ours, other = (
                figures.get((keys, line.workload, system)) for system in ("tfra", line.against)
            )
            if ours is None or other is None:
                continue
            numbers = [
                f"{other / line.unit:.2f}",
                f"{ours / line.unit:.2f}",
                f"{ours / other:.2f}x",
            ]
            rows.append([line.title, million(keys), *numbers])
            if line.workload != "memory":
                title = line.title.rsplit(",", 1)[0]
                bars.append(Bar(f"{title}, {million(keys)}", ours / other))
    pages[DOCS / "images" / "bench-variable.svg"] = bar_chart(
        "Variable, TFRA 0.8.1 and tf.gather", "rate, divided by the other's", bars, TIMES
    )
    text = """`tfra.dynamic_embedding.Variable` against the class of the same name in TFRA, and
against `tf.gather` from a dense tensor. Rows have 32 floats (`bench/compare_variable.py`). For
bytes per key, less is better."""
    lines = table(["workload", "keys", "other", "tfra", "ratio"], rows)
    return section("Variable", text, results, ("Ratios to others", "bench-variable.svg"), lines)


def training(pages: Pages) -> list[str]:
    """Returns the section that compares training with the peer, static Keras, torch and FBGEMM."""
    results = read("training")
    figures, rows, bars = best(results), [], []
    for line in compare_training.LINES:
        for keys, dim in sorted({(k, d) for k, _, _ in figures for d in compare_training.DIMS}):
            ours, other = (
                figures.get((keys, f"{workload}_{dim}", system))
                for workload, system in (line.ours, line.other)
            )
            if ours is None or other is None:
                continue
            ratio = other / ours if line.at_most else ours / other
            numbers = [f"{other / line.unit:.2f}", f"{ours / line.unit:.2f}", f"{ratio:.2f}x"]
            rows.append([line.title, str(dim), *numbers])
            if not line.at_most:
                name = line.title.removesuffix(", k examples/s").removesuffix(", M ids/s")
                bars.append(Bar(f"{name}, dim {dim}", ratio))
    pages[DOCS / "images" / "bench-training.svg"] = bar_chart(
        "Training", "rate, divided by the other's", bars, TIMES
    )
    text = """Training on a stream of ids like Criteo's: 26 features, skewed ids of which a fifth
are new, tables that start with 2 million keys and grow (`bench/compare_training.py`). Rates are
thousands of examples per second for `fit`, and millions of ids per second for the other lines.
The tables of torch, FBGEMM and static Keras have a fixed size and take no new ids. For the last
two lines, the ratio is a ratio of times: less is better."""
    lines = table(["what", "dim", "other", "tfra", "ratio"], rows)
    return section("Training", text, results, ("Ratios to others", "bench-training.svg"), lines)


def tiers(pages: Pages) -> list[str]:
    """Returns the section that compares tables with a file, tables in memory and RocksDB."""
    results = read("tiers")
    figures, rows, bars = best(results), [], []
    for keys in sorted({place[0] for place in figures}):
        for line in compare_tiers.LINES:
            ours, other = (
                figures.get((keys, line.workload, system)) for system in ("tfra", line.against)
            )
            if ours is None or other is None:
                continue
            numbers = [f"{other / 1e6:.2f}", f"{ours / 1e6:.2f}", f"{ours / other:.2f}x"]
            rows.append([line.title, f"{keys:,}", *numbers])
            bars.append(Bar(f"{line.title}, {keys:,} keys", ours / other))
    measured = [
        r for r in results["records"] if r["workload"] == "memory" and r["system"] == "tfra"
    ]
    if measured:
        worst = max(measured, key=compare_tiers.memory_ratio)
        room = worst["budget_bytes"] + worst["index_bytes"]
        numbers = [f"{number / 2**20:.0f}" for number in (room, worst["resident_bytes"])]
        ratio = f"{compare_tiers.memory_ratio(worst):.2f}x"
        title = "resident memory, against budget plus index, MiB"
        rows.append([title, f"{worst['keys']:,}", *numbers, ratio])
        index = f"{worst['bytes_per_key']:.1f}"
        rows.append(["index, bytes per key", f"{worst['keys']:,}", "", index, ""])
    pages[DOCS / "images" / "bench-tiers.svg"] = bar_chart(
        "Tables with a file", "keys per second, divided by the other's", bars, TIMES
    )
    text = """`tfra.Table` with memory for an eighth of its rows and the others in a file. It is
compared with the same table with all rows in memory, and with RocksDB with a block cache of the
same size. Rows have 32 floats and their Adam slots, ids follow a Zipf law with exponent 1.05, a
call has 65,536 ids (`bench/compare_tiers.py`). Rates are millions of keys per second."""
    lines = table(["what", "keys", "other", "tfra", "ratio"], rows)
    image = ("Ratios to others", "bench-tiers.svg")
    return [*section("Two tiers", text, results, image, lines), *large()]


def large() -> list[str]:
    """Returns the section about a table that is much larger than its memory."""
    results = read("large")
    rows = [
        [
            name,
            f"{found['per_second'] / 1e6:.2f}",
            f"{found['seconds']:.0f}",
            f"{found['resident_bytes'] / 2**30:.2f}",
            f"{found['resident_of_budget_and_index']:.2f}x",
            f"{found['slow_bytes'] / 2**30:.1f}",
        ]
        for name, found in results["records"][0].items()
    ]
    header = ["", "M keys/s", "seconds", "resident GiB", "of budget plus index", "file, GiB"]
    text = f"""A table of {million(results["keys"])} keys with rows of {results["dim"]} floats and
their Adam slots, and {results["fast_bytes"] / 1e9:g} GB of memory for rows (`make bench-large`).
The table is built, trained for {results["steps"]} steps of 65,536 ids, and exported. The index
takes {results["index_bytes_per_key"]:.1f} bytes per key."""
    return [
        "",
        "### Much larger than memory",
        "",
        text,
        "",
        where(results),
        "",
        *table(header, rows),
    ]


def upkeep(pages: Pages) -> list[str]:
    """Returns the section about restriction, the memory of admission and the cost of counters."""
    del pages  # This section has too few figures for a chart.
    results, counters = read("restrict"), read("counters")
    restrict, admission = results["records"]
    seconds, extra = restrict["seconds"], restrict["extra"]
    rows = [
        [
            f"restrict {million(restrict['keys'])} keys to half, seconds",
            f"{seconds['peer']:.2f}",
            f"{seconds['tfra']:.3f}",
            f"{seconds['peer'] / seconds['tfra']:.1f}x",
        ],
        [
            "extra memory during that, percent of the table",
            f"{extra['peer']:.1%}",
            f"{extra['tfra']:.1%}",
            "",
        ],
        [
            f"Bloom filter after {million(admission['keys'])} keys, MB; other: what was asked for",
            f"{admission['asked_bytes'] / 1e6:.0f}",
            f"{admission['filter_bytes'] / 1e6:.0f}",
            f"{admission['filter_bytes'] / admission['asked_bytes']:.2f}x",
        ],
    ]
    rows += [
        [
            f"lookups in {million(record['keys'])} keys, M keys/s; other: without counters",
            f"{record['without'] / 1e6:.1f}",
            f"{record['with'] / 1e6:.1f}",
            f"{1 - record['median'] / 100:.3f}x",
        ]
        for record in counters["records"]
    ]
    text = """Three measurements: `Variable.restrict` by frequency against TFRA 0.8.1, with rows
of 32 floats (`bench/compare_restrict.py`); the memory of an admission filter; and lookups against
the same engine compiled without counters, in turns, as the median of all turns
(`bench/counters.py`)."""
    lines = table(["what", "other", "tfra", "ratio"], rows)
    return ["", "## Keeping in shape", "", text, "", where(results), "", *lines]


def hit_rate(pages: Pages) -> None:
    """Draws a chart for another page: the share of rows found in memory, by the memory's size."""
    bars = [
        Bar(
            "memory for all rows" if r["share"] == "1" else f"memory for {r['share']} of the rows",
            r["fast_hit_rate"],
            r["best_possible"],
        )
        for r in read("hit_rate")["records"]
    ]
    pages[DOCS / "images" / "hit-rate.svg"] = bar_chart(
        "Rows found in memory, of ids that follow a Zipf law with the exponent 1.05",
        "of all ids looked up",
        bars,
        OF_RAW,
        "the best possible",
    )


def headline() -> str:
    """Returns the speed table of the README (five workloads against TFRA) and its paragraph."""
    of_variable, of_training = read("variable"), read("training")
    figures = {**best(of_variable), **best(of_training)}
    workloads = {
        "look up rows": (10_000_000, "lookup"),
        "look up rows, random initializer": (10_000_000, "lookup_random"),
        "write existing rows": (10_000_000, "upsert"),
        "insert new rows": (10_000_000, "insert"),
        "train rows with Adam": (2_000_000, "adam_32"),
    }

    def compare(keys: int, workload: str) -> tuple[float, float]:
        ours, peer = (figures[keys, workload, system] / 1e6 for system in ("tfra", "peer"))
        return peer, ours

    rows = []
    for title, place in workloads.items():
        peer, ours = compare(*place)
        rows.append([title, f"{peer:.2f}", f"{ours:.2f}", f"{ours / peer:.1f}x"])
    head = [f"{HEADLINE}](docs/benchmarks.md))", "TFRA 0.8.1", "tfra", "speedup"]
    peer, ours = compare(2_000_000, "fit_32")
    text = f"""Rows have 32 floats, tables have 10 million keys (2 million for Adam), and both
systems run on {of_variable["cores"]} CPUs. `fit` of a whole DeepFM model with Adam is
{ours / peer:.1f} times as fast as with TFRA."""
    return "\n".join(table(head, rows)) + "\n\n" + text


def readme() -> str:
    """Returns the README with its speed table and paragraph replaced."""
    text = README.read_text()
    begin = text.index(f"| {HEADLINE}")
    _, _, rest = text[begin:].split("\n\n", 2)
    return f"{text[:begin]}{headline()}\n\n{rest}"


def generate() -> Pages:
    """Returns the text of each file, by its path."""
    pages: Pages = {}
    sections = (engine, numpy_table, variable, training, upkeep, tiers)
    parts = [part for make in sections for part in make(pages)]
    hit_rate(pages)
    pages[README] = readme()
    pages[DOCS / "benchmarks.md"] = INTRODUCTION + "\n".join(parts).rstrip() + "\n"
    return pages


def main() -> int:
    """Writes or checks the files; returns the exit code."""
    pages = generate()
    if "--check" in sys.argv[1:]:
        old = [p for p, text in pages.items() if not p.exists() or p.read_text() != text]
        for path in old:
            print(f"{path.relative_to(ROOT)} is not what tools/bench_page.py writes")
        return 1 if old else 0
    for path, text in pages.items():
        path.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
