"""Histories and drawn items from users' interactions."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from embershard.datasets import ClickLog, ClickLogError, ColumnSpec, open_ready_made
from embershard.datasets.interaction_sequences import InteractionReader, Interactions

NAMES = ("label", "user", "item", "history", "steps_to_last", "category", "category_history", "time")


def interactions(seed: int, users: int = 20, count: int = 300) -> list[tuple[int, int, int, int]]:
    """(user, item, category, time), in no order; the category is a function of the item."""
    draw = random.Random(seed)
    made = []
    for _ in range(count):
        item = draw.randrange(50)
        made.append((draw.randrange(users), item, item % 7, draw.randrange(100)))
    return made


def rows_of(reader: InteractionReader, start: int = 0, stop: int | None = None) -> list[dict[str, object]]:
    return [
        row for chunk in reader.read(start, stop, [ColumnSpec(name) for name in NAMES]) for row in chunk.to_pylist()
    ]


def reader_over(made: list[tuple[int, int, int, int]], **options: int) -> InteractionReader:
    return InteractionReader(Interactions(*np.array(made, np.int64).T), "x.csv", **options)


def test_taken_rows_are_each_users_next_item_with_what_came_before() -> None:
    made = interactions(1)
    expected = []
    for user in sorted({user for user, *_ in made}):
        own = sorted((row for row in made if row[0] == user), key=lambda row: row[3])
        for place in range(1, len(own)):
            before = own[max(0, place - 5) : place]
            _, item, category, time = own[place]
            expected.append({
                "label": 1.0, "user": user, "item": item, "history": [row[1] for row in before],
                "steps_to_last": place - len(own) + 1, "category": category,
                "category_history": [row[2] for row in before], "time": time,
            })  # fmt: skip
    assert rows_of(reader_over(made, history=5, negatives=0)) == expected


def test_drawn_items_differ_from_the_taken_one_only_in_item_category_and_label() -> None:
    reader = reader_over(interactions(2), negatives=3, history=4)
    rows = rows_of(reader)
    assert len(rows) == sum(reader.pieces())
    drawn_items = set()
    for start in range(0, len(rows), 4):
        taken, *drawn = rows[start : start + 4]
        assert taken["label"] == 1.0
        for row in drawn:
            assert row["item"] != taken["item"]
            drawn_items.add(row["item"])
            assert row == {**taken, "label": 0.0, "item": row["item"], "category": int(str(row["item"])) % 7}
    assert drawn_items == {item for _, item, *_ in interactions(2)}


def test_any_slice_is_that_slice_of_the_rows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embershard.datasets.interaction_sequences._CHUNK_ROWS", 64)
    reader = reader_over(interactions(3), negatives=1)
    rows = rows_of(reader)
    for start, stop in ((0, 10), (63, 65), (100, 300), (7, None), (len(rows), None)):
        assert rows_of(reader, start, stop) == rows[start:stop]


def test_a_users_last_interactions_can_be_held_out(tmp_path: Path) -> None:
    path = tmp_path / "UserBehavior.csv"
    path.write_text("".join(f"{u},{i},{c},pv,{t}\n" for u, i, c, t in interactions(4)))
    log = open_ready_made("taobao_user_behavior", path)
    assert log.column_names() == NAMES
    columns = [ColumnSpec("user"), ColumnSpec("steps_to_last")]
    rows = [row for unit in log.units(0) for batch in log.records(unit, columns, 64) for row in batch.to_pylist()]
    assert len(rows) == log.rows()
    assert {row["user"] for row in rows if row["steps_to_last"] == 0} == {row["user"] for row in rows}


def test_bad_settings_and_nothing_to_draw_from_are_errors() -> None:
    with pytest.raises(ClickLogError, match="expected history >= 1"):
        reader_over(interactions(1), history=0)
    with pytest.raises(ClickLogError, match="expected at least two items"):
        reader_over([(1, 5, 0, 0), (1, 5, 0, 1)])
    empty = ClickLog.over(reader_over([(1, 5, 0, 0), (2, 6, 0, 0)]))
    with pytest.raises(ClickLogError, match="expected rows to read"):
        empty.units(0)


def test_readers_of_ones_own_need_distinct_paths() -> None:
    reader = reader_over(interactions(1))
    with pytest.raises(ClickLogError, match="distinct paths"):
        ClickLog.over(reader, reader)
    assert pa.types.is_list(next(iter(reader.read(0, 1, [ColumnSpec("history")]))).schema.field(0).type)
