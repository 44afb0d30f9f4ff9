"""How a table is displayed: one line, a table of HTML, its first rows."""

from __future__ import annotations

import sys
from html.parser import HTMLParser

import numpy as np
import pandas as pd
import pytest

import tfra
from support import Case, assert_identical, content, full_state, row_bytes


class Cells(HTMLParser):
    """The cells of a table, row by row."""

    def __init__(self, html: str) -> None:
        super().__init__()
        self.rows: list[list[str]] = []
        self.open: list[str] = []
        self.feed(html)
        self.close()

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.open.append(tag)
        if tag == "tr":
            self.rows.append([])

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1] in ("td", "th"):
            self.rows[-1].append(data)


def test_the_line_says_what_a_table_is() -> None:
    table = tfra.Table(4, key_dtype="string", optimizer=tfra.optimizers.Adam(0.1))
    table.apply_gradients(["a", "b"], np.ones((2, 4), np.float32))
    total = table.memory_usage()["total"] / 1024
    assert repr(table) == (
        "<tfra.Table keys=2 dim=4 key_dtype=string value_dtype=float32 "
        f"bytes={total:.1f}KiB optimizer=Adam device=CPU>"
    )
    assert "optimizer" not in repr(tfra.Table(4))


def test_a_subclass_shows_its_name() -> None:
    class Users(tfra.Table):
        pass

    assert "Users keys=0" in repr(Users(4))


@pytest.mark.parametrize(
    ("number", "text"),
    [(0, "0B"), (1023, "1023B"), (1024, "1.0KiB"), (1536 * 1024, "1.5MiB"), (3 * 2**30, "3.0GiB"),
     (2**41, "2.0TiB"), (2**51, "2048.0TiB")],
)  # fmt: skip
def test_bytes_are_readable(number: int, text: str) -> None:
    from tfra._shared.display import readable_bytes

    assert readable_bytes(number) == text


def test_html_has_the_same_facts() -> None:
    table = tfra.Table(4, optimizer="sgd")
    cells = Cells(table._repr_html_())
    assert cells.open == [], "a tag was left open"
    facts = dict(cells.rows)
    assert facts["keys"] == "0" and facts["key dtype"] == "int64" and facts["optimizer"] == "SGD"
    line = " ".join(f"{what.replace(' ', '_')}={fact}" for what, fact in facts.items())
    assert repr(table) == f"<tfra.Table {line}>"


def test_html_is_escaped() -> None:
    class Odd(tfra.Table):
        def _facts(self) -> dict[str, object]:
            return {"name": "<b>&"}

    assert "&lt;b&gt;&amp;" in Odd(1)._repr_html_() and "<b>" not in Odd(1)._repr_html_()


def test_showing_changes_nothing() -> None:
    table = tfra.Table(3, optimizer="adam")
    table.apply_gradients([1, 2], np.ones((2, 3), np.float32))
    before = full_state(table), table.stats()
    repr(table), table._repr_html_(), table.head(), table.to_pandas()
    assert (full_state(table), table.stats()) == before


@pytest.mark.parametrize("n", [0, 1, 5, 100, 1000])
def test_head_has_as_many_rows_as_it_is_asked_for(case: Case, n: int) -> None:
    table = case.table()
    table.upsert(case.keys(range(100)), case.values(100))
    keys, values = table.head(n)
    m = min(n, 100)
    assert (keys.shape, values.shape) == ((m,), (m, case.dim))
    assert (keys.dtype, values.dtype) == (table.key_dtype, table.value_dtype)
    whole = content(table)
    assert len(set(keys.tolist())) == m
    assert all(whole[key] == row_bytes(row) for key, row in zip(keys.tolist(), values, strict=True))


def test_head_is_five_rows_unless_told() -> None:
    table = tfra.Table(1)
    table.upsert(range(9), np.zeros((9, 1), np.float32))
    assert len(table.head()[0]) == 5


def test_head_reads_no_more_than_it_shows(monkeypatch: pytest.MonkeyPatch) -> None:
    table = tfra.Table(2)
    table.upsert(range(100_000), np.zeros((100_000, 2), np.float32))
    taken = []
    batches = table.iterate

    def counted(batch_size: int) -> object:
        for batch in batches(batch_size):
            taken.append(len(batch[0]))
            yield batch

    monkeypatch.setattr(table, "iterate", counted)
    assert len(table.head(10)[0]) == 10
    assert sum(taken) < 30


def test_head_of_an_empty_table(case: Case) -> None:
    keys, values = case.table().head()
    assert_identical(keys, case.keys([]))
    assert_identical(values, case.values(0))


@pytest.mark.parametrize("method", ["head", "to_pandas"])
def test_wrong_numbers_of_rows(method: str) -> None:
    call = getattr(tfra.Table(2), method)
    with pytest.raises(ValueError, match=r"`n` must be 0 or more. Received: -1"):
        call(-1)
    with pytest.raises(TypeError, match=r"`n` must be an integer. Received: 2.5"):
        call(2.5)


def test_pandas_has_keys_as_index(case: Case) -> None:
    table = case.table()
    table.upsert(case.keys(range(20)), case.values(20))
    frame = table.to_pandas()
    assert frame.shape == (20, case.dim) and frame.index.name == "key"
    assert len(table.to_pandas(7)) == 7
    if case.value_dtype in ("float32", "float64", "int8", "int32", "int64", "bool"):
        assert set(frame.dtypes) == {np.dtype(case.value_dtype)}
        keys = table.head(20)[0]
        pd.testing.assert_frame_equal(
            frame.reset_index(drop=True), pd.DataFrame(table.lookup(keys))
        )


def test_pandas_gets_texts_where_they_are_texts() -> None:
    table = tfra.Table(1, key_dtype="string", value_dtype="string")
    table.upsert(["Zoë"], [["naïve"]])
    assert table.to_pandas().loc["Zoë", 0] == "naïve"
    table.upsert([b"\xff"], [["x"]])
    assert sorted(table.to_pandas().index) == ["Zoë".encode(), b"\xff"]


def test_without_pandas(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(ImportError, match=r"pip install 'tfra\[pandas\]'"):
        tfra.Table(2).to_pandas()
