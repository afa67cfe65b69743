"""Public click logs read from their publishers' files: Criteo, Avazu, Adult, Frappe, Alimama."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from .click_log import UNIT_ROWS, ClickLog
from .csv_options import CsvOptions
from .derived_columns import Derive
from .schema import ColumnSpec

Paths = str | Path | Iterable[str | Path]

_CRITEO = ("label", *(f"I{i}" for i in range(1, 14)), *(f"C{i}" for i in range(1, 27)))
_AVAZU = (
    "id", "click", "hour", "C1", "banner_pos", "site_id", "site_domain", "site_category", "app_id", "app_domain",
    "app_category", "device_id", "device_ip", "device_model", "device_type", "device_conn_type",
    *(f"C{i}" for i in range(14, 22)),
)  # fmt: skip
_ADULT = (
    "age", "workclass", "fnlwgt", "education", "education-num", "marital-status", "occupation", "relationship", "race",
    "sex", "capital-gain", "capital-loss", "hours-per-week", "native-country", "income",
)  # fmt: skip
_FRAPPE = (
    "user", "item", "daytime", "weekday", "isweekend", "homework", "cost", "weather", "country", "city",
)  # fmt: skip
_ALIMAMA_HISTORIES = ("btag_history", "cate_history", "brand_history")
_ALIMAMA_STEPS = 50
_ALIMAMA = (
    "userid", "cms_segid", "cms_group_id", "gender", "age_level", "pvalue_level", "shopping_level", "occupation",
    "new_user_class_level", "adgroup_id", "cate_id", "campaign_id", "customer", "brand", "price", "pid", "clk",
)  # fmt: skip


def criteo(paths: Paths, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """Criteo's display-advertising logs (Kaggle train.txt, terabyte day_*.gz): `label`, `I1` … `I13`, `C1` … `C26`."""
    csv = CsvOptions(delimiter="\t", quote=None, column_names=_CRITEO)
    return ClickLog(paths, format="csv", csv=csv, unit_rows=unit_rows, run=run)


def avazu(paths: Paths, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """Avazu's Kaggle log, with or without its header; `hour` is YYMMDDHH text (feature map format %y%m%d%H)."""
    return ClickLog(paths, format="csv", csv=CsvOptions(column_names=_AVAZU), unit_rows=unit_rows, run=run)


def adult(paths: Paths, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """UCI Adult (adult.data, adult.test): the census columns, and `label` 1 where the income is above 50K."""
    csv = CsvOptions(column_names=_ADULT, null_values=("", "?"), trim=True, comment="|")
    stage = Derive((ColumnSpec("income", pa.string()),), ("label",), _is_above_50k)
    return ClickLog(paths, format="csv", csv=csv, stages=(stage,), unit_rows=unit_rows, run=run)


def frappe(paths: Paths, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """Frappe in the libfm form of NFM and AFM: `label` 0 or 1 and one id for each of the ten context fields."""
    inputs = (ColumnSpec("label", pa.float64()), ColumnSpec("indices", pa.list_(pa.int64())))
    stage = Derive(inputs, ("label", *_FRAPPE), _frappe_fields)
    return ClickLog(paths, format="libsvm", stages=(stage,), unit_rows=unit_rows, run=run)


def alimama_dmr(paths: Paths, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """Alimama display ads as prepared for DMR: `clk`, user and ad columns, and the behaviour histories as lists."""
    steps = [f"{name} {step}" for name in (*_ALIMAMA_HISTORIES, "mask", "match_mask") for step in range(_ALIMAMA_STEPS)]
    csv = CsvOptions(column_names=(*steps, *_ALIMAMA), null_values=("", "NULL"), header=False)
    inputs = tuple(ColumnSpec(name, pa.int64()) for name in steps[: 4 * _ALIMAMA_STEPS])
    stage = Derive(inputs, _ALIMAMA_HISTORIES, _alimama_histories)
    return ClickLog(paths, format="csv", csv=csv, stages=(stage,), unit_rows=unit_rows, run=run)


def din_sequences(paths: Paths, *, unit_rows: int = UNIT_ROWS, run: int | None = None) -> ClickLog:
    """Amazon sequences as prepared for DIN: `item_history` and `cate_history` (blank-separated ids), `item`, `cate`,
    `label`."""
    names = ("item_history", "cate_history", "item", "cate", "label")
    csv = CsvOptions(delimiter=";", quote=None, column_names=names, header=False)
    return ClickLog(paths, format="csv", csv=csv, unit_rows=unit_rows, run=run)


def _is_above_50k(records: pa.RecordBatch) -> dict[str, pa.Array]:
    return {"label": pc.starts_with(records.column("income"), ">50K").cast(pa.float32())}


def _frappe_fields(records: pa.RecordBatch) -> dict[str, pa.Array]:
    indices = records.column("indices")
    if len(records) and not pc.all(pc.equal(pc.list_value_length(indices), len(_FRAPPE))).as_py():
        raise ValueError(f"expected {len(_FRAPPE)} fields on each line")
    ids = indices.flatten().to_numpy(zero_copy_only=False).reshape(-1, len(_FRAPPE))
    fields = {name: pa.array(np.ascontiguousarray(ids[:, place])) for place, name in enumerate(_FRAPPE)}
    return {"label": pc.greater(records.column("label"), 0.0).cast(pa.float32()), **fields}


def _alimama_histories(records: pa.RecordBatch) -> dict[str, pa.Array]:
    is_there = _matrix(records, "mask") > 0
    offsets = pa.array(np.concatenate(([0], np.cumsum(is_there.sum(axis=1)))).astype(np.int32))
    return {
        name: pa.ListArray.from_arrays(offsets, pa.array(_matrix(records, name)[is_there]))
        for name in _ALIMAMA_HISTORIES
    }


def _matrix(records: pa.RecordBatch, name: str) -> np.ndarray[tuple[int, int], np.dtype[np.int64]]:
    columns: Sequence[pa.Array] = [records.column(f"{name} {step}") for step in range(_ALIMAMA_STEPS)]
    return np.column_stack([column.fill_null(0).to_numpy(zero_copy_only=False) for column in columns])
