"""NativeTableGroup: the C++ table group. Same verbs and same bits as `reference.py`, which is its definition."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..datasets.argument_checks import whole_number
from . import _native
from .errors import DuplicateKeyError, UnknownTableError
from .init_vectors import load_init_vectors
from .initializers import stream_base, uniform_constants
from .optimizers import block_state_width
from .policies import capacity_order, row_limit
from .request_checks import (
    check_clicks,
    check_droppable,
    check_import,
    check_prepared,
    check_same_config,
    check_step,
    check_writable,
    unknown_owners,
    wrong_arrays,
)
from .row_types import STORED_DTYPES, Stored, dtype_name
from .table_config import (
    Adagrad,
    Adam,
    ColumnBlock,
    Constant,
    Ftrl,
    MinCount,
    MinL2,
    Momentum,
    Normal,
    Probability,
    Rmsprop,
    RowwiseAdagrad,
    RowwiseAdam,
    Score,
    TableConfig,
    TruncatedNormal,
    Ttl,
    Uniform,
    unknown_table,
)
from .table_group import (
    Absent,
    TableKeys,
    TableRows,
    TableStats,
    TabletSnapshot,
    TableUpdate,
    UpdateReport,
    UpdateStep,
)

NAMED_KEYS = 16

_ROW_TYPES = {"float32": 0, "float16": 1, "bfloat16": 2}
_ABSENT = {"initial": 0, "zeros": 1, "unseen": 2}
_DECAY_MODES = {"none": 0, "l2": 1, "decoupled": 2}
_ADMISSIONS = {"always": 0, "min_count": 1, "probability": 2}
_CAPACITY_ORDERS = {None: 0, "lru": 1, "lfu": 2}
_OPTIMIZERS = {
    "sgd": 0,
    "momentum": 1,
    "adagrad": 2,
    "rowwise_adagrad": 3,
    "adam": 4,
    "adamw": 4,
    "rowwise_adam": 5,
    "rmsprop": 6,
    "ftrl": 7,
}


MAX_THREADS = 256


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A push's keys as `prepare` left them, what they are of, and the ids that its tables had."""

    request: TableKeys
    occurrences: npt.NDArray[np.uint32]
    ids: npt.NDArray[np.int32]
    keys: _native.PreparedKeys


class NativeTableGroup:
    """All tables of one process, in the native core. See `TableGroup` for the verbs.

    tablet_bits: the key space is cut into 2^tablet_bits tablets.   threads: table threads a verb may use.
    kernels:     name of a kernel set of this CPU (`kernel_sets()`), the fastest unless given; all give the same bits.

    Thread safety: any mix of verbs from any threads; the GIL is released while rows are worked on.
    """

    def __init__(self, tablet_bits: int = 8, threads: int = 1, kernels: str = "") -> None:
        tablet_bits, threads = whole_number(tablet_bits, "tablet_bits"), whole_number(threads, "threads")
        if not 1 <= threads <= MAX_THREADS:
            raise ValueError(f"expected threads in 1..{MAX_THREADS}, got {threads}")
        self._tablet_bits = tablet_bits
        self._group = _native.TableGroup(tablet_bits, threads, kernels)
        self._configs: dict[str, TableConfig] = {}
        self._ids: dict[str, int] = {}
        self._owners: dict[str, str] = {}
        self._state_widths: dict[str, int] = {}
        self._id_arrays: dict[tuple[str, ...], tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]] = {}
        self._lock = threading.Lock()
        self._cursor: tuple[str, int, int] | None = None

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits tablets."""
        return self._tablet_bits

    def ensure_table(self, config: TableConfig) -> None:
        """See `TableGroup.ensure_table`."""
        with self._lock:
            existing = self._configs.get(config.name)
            if existing is not None:
                check_same_config(existing, config)
                return
            if config.unseen == "unknown_row":
                self._add(unknown_table(config))
            self._add(config)
            self._owners = unknown_owners(self._configs.values())

    def _add(self, config: TableConfig) -> None:
        existing = self._configs.get(config.name)
        if existing is not None:
            check_same_config(existing, config)
        else:
            unknown = self._ids[unknown_table(config).name] if config.unseen == "unknown_row" else -1
            table_id = self._group.add_table(table_spec(config, self._tablet_bits, unknown))
            self._ids[config.name] = table_id
            self._state_widths[config.name] = sum(block_state_width(block) for block in config.blocks)
            self._configs[config.name] = config

    def drop_table(self, name: str) -> None:
        """See `TableGroup.drop_table`."""
        with self._lock:
            table_id = self._id(name)
            check_droppable(name, self._configs)
            dropped = [(name, table_id)]
            if self._configs[name].unseen == "unknown_row":
                unknown = unknown_table(self._configs[name]).name
                dropped.append((unknown, self._ids[unknown]))
            self._id_arrays = {}
            self._cursor = None
            for table, native_id in dropped:
                del self._configs[table], self._ids[table], self._state_widths[table]
                self._group.drop_table(native_id)
            self._owners = unknown_owners(self._configs.values())

    def tables(self) -> tuple[TableConfig, ...]:
        """See `TableGroup.tables`."""
        return tuple(self._configs.values())

    def state_width(self, table: str) -> int:
        """See `TableGroup.state_width`."""
        self._id(table)
        return self._state_widths[table]

    def lookup(self, request: TableKeys, absent: Absent = "initial", out: Stored | None = None) -> npt.NDArray[Any]:
        """See `TableGroup.lookup`."""
        ids, dims = self._ids_of(request.tables)
        if out is None:
            out = np.empty(int(np.diff(request.splits) @ dims), np.float32)
        self._group.lookup(ids, request.keys, request.splits, _ABSENT[absent], *_typed(out))
        return out

    def apply_gradients(
        self,
        request: TableKeys,
        gradients: Stored,
        occurrences: npt.NDArray[np.uint32],
        step: UpdateStep,
        tablets: npt.NDArray[np.bool_] | None = None,
        clicks: npt.NDArray[np.uint32] | None = None,
        prepared: object | None = None,
    ) -> UpdateReport:
        """See `TableGroup.apply_gradients`."""
        check_writable(request.tables, self._owners)
        check_clicks(clicks, occurrences)
        check_step(step)
        ids, _ = self._ids_of(request.tables)
        native_step = _native.UpdateStep(step.examples, step.step, step.now, step.lr_scale, step.unit, step.batch)
        typed = _typed(gradients)
        ready = check_prepared(prepared, _Prepared)
        if ready is not None and (ready.request is not request or ready.occurrences is not occurrences):
            raise ValueError("expected keys that were prepared for this very request and occurrences, got others'")
        if ready is not None and ready.ids is not ids and ready.ids.tolist() != ids.tolist():
            ready = None  # a table was dropped and made anew meanwhile
        try:
            updates, refused = self._group.apply_gradients(
                ids,
                request.keys,
                request.splits,
                *typed,
                occurrences,
                native_step,
                tablets,
                clicks,
                None if ready is None else ready.keys,
            )
        except KeyError as error:
            raise _duplicate(error, request) from None
        except TypeError:
            raise wrong_arrays(gradients=gradients, occurrences=occurrences, tablets=tablets) from None
        return UpdateReport(
            {name: TableUpdate(*update) for name, update in zip(request.tables, updates, strict=True)},
            {name: tuple(keys[:NAMED_KEYS]) for name, keys in zip(request.tables, refused, strict=True) if keys},
        )

    def prepare(self, request: TableKeys, occurrences: npt.NDArray[np.uint32]) -> _Prepared:
        """See `TableGroup.prepare`."""
        ids, _ = self._ids_of(request.tables)
        try:
            prepared = self._group.prepare(ids, request.keys, request.splits, occurrences)
        except KeyError as error:
            raise _duplicate(error, request) from None
        return _Prepared(request, occurrences, ids, prepared)

    def assign(
        self,
        request: TableKeys,
        weights: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
        *,
        if_absent: bool = False,
        now: int = 0,
        tablets: npt.NDArray[np.bool_] | None = None,
    ) -> int:
        """See `TableGroup.assign`."""
        check_writable(request.tables, self._owners)
        ids, _ = self._ids_of(request.tables)
        try:
            return self._group.assign(ids, request.keys, request.splits, weights, state, if_absent, now, tablets)
        except KeyError as error:
            raise _duplicate(error, request) from None
        except TypeError:
            raise wrong_arrays(weights=weights, state=state, tablets=tablets, now=now) from None

    def erase(self, request: TableKeys, tablets: npt.NDArray[np.bool_] | None = None) -> int:
        """See `TableGroup.erase`."""
        check_writable(request.tables, self._owners)
        ids, _ = self._ids_of(request.tables)
        try:
            return self._group.erase(ids, request.keys, request.splits, tablets)
        except KeyError as error:
            raise _duplicate(error, request) from None

    def evict(
        self, now: int, max_rows: int | None = None, tablets: npt.NDArray[np.bool_] | None = None
    ) -> dict[str, int]:
        """See `TableGroup.evict`."""
        removed = {name: len(keys) for name, keys in self._expire(now, max_rows, tablets, removes=True).items()}
        return {name: removed.get(name, 0) for name in self._configs}

    def expired(self, now: int, max_rows: int | None = None, tablets: npt.NDArray[np.bool_] | None = None) -> TableKeys:
        """See `TableGroup.expired`."""
        found = self._expire(now, max_rows, tablets)
        return TableKeys.concat({name: keys for name, keys in found.items() if len(keys)})

    def _expire(
        self, now: int, max_rows: int | None, tablets: npt.NDArray[np.bool_] | None, *, removes: bool = False
    ) -> dict[str, npt.NDArray[np.uint64]]:
        with self._lock:
            names, ids = list(self._ids), list(self._ids.values())
            budget = 1 << 62 if max_rows is None else max_rows
            if tablets is not None:
                keys, _ = self._group.expire(ids, now, budget, removes, tablets, (0, 0, 0))
                return dict(zip(names, keys, strict=True))
            start = (0, 0, 0)
            if self._cursor is not None and self._cursor[0] in self._ids:
                start = (names.index(self._cursor[0]), *self._cursor[1:])
            keys, (table, tablet, key_hash) = self._group.expire(ids, now, budget, removes, None, start)
            self._cursor = (names[table], tablet, key_hash) if (table, tablet, key_hash) != (0, 0, 0) else None
            return dict(zip(names, keys, strict=True))

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """See `TableGroup.snapshot`."""
        with self._lock:
            configs = tuple(self._configs.values())
            version, push_count, erased_since, is_whole, parts = self._group.snapshot(
                tablet, [self._ids[config.name] for config in configs], since_version
            )
        tables = {
            config.name: _table_rows(config, self._state_widths[config.name], part)
            for config, part in zip(configs, parts, strict=True)
        }
        return TabletSnapshot(
            tablet=tablet,
            tablet_bits=self._tablet_bits,
            version=version,
            since_version=None if is_whole else since_version,
            push_count=push_count,
            tables=tables,
            erased_since=erased_since,
        )

    def import_tablet(self, snapshot: TabletSnapshot) -> None:
        """See `TableGroup.import_tablet`."""
        with self._lock:
            check_import(snapshot, self._tablet_bits, self._group.version(snapshot.tablet), self._shape)
            parts: list[tuple[object, ...]] = [
                (
                    self._ids[name],
                    rows.keys,
                    np.ascontiguousarray(rows.weights).reshape(-1).view(np.uint8),
                    np.ascontiguousarray(rows.state, np.float32).reshape(-1),
                    rows.count,
                    rows.touched_at,
                    rows.version,
                    rows.admission_keys,
                    rows.admission_counts,
                    rows.erased_keys,
                    rows.erased_versions,
                    rows.clicks,
                )
                for name, rows in snapshot.tables.items()
            ]
            self._group.import_tablet(
                snapshot.tablet,
                parts,
                snapshot.version,
                snapshot.push_count,
                snapshot.erased_since,
                snapshot.since_version is None,
            )

    def drop_tablet(self, tablet: int) -> None:
        """See `TableGroup.drop_tablet`."""
        self._group.drop_tablet(tablet)

    def cut(self, tablet: int) -> int:
        """See `TableGroup.cut`."""
        return self._group.cut(tablet)

    def push_counts(self) -> npt.NDArray[np.uint64]:
        """See `TableGroup.push_counts`."""
        return self._group.push_counts()

    def stats(self) -> dict[str, TableStats]:
        """See `TableGroup.stats`."""
        with self._lock:
            return {name: self._table_stats(table_id) for name, table_id in self._ids.items()}

    def _table_stats(self, table_id: int) -> TableStats:
        by_tablet, rows, slots, weights, state, counters, index, free = self._group.stats(table_id)
        parts = {"weights": weights, "state": state, "counters": counters, "index": index, "free": free}
        return TableStats(rows, parts, rows / slots if slots else 0.0, by_tablet)

    def _id(self, name: str) -> int:
        try:
            return self._ids[name]
        except KeyError:
            raise UnknownTableError(f"expected one of tables {sorted(self._ids)}, got {name!r}") from None

    def _ids_of(self, tables: tuple[str, ...]) -> tuple[npt.NDArray[np.int32], npt.NDArray[np.int64]]:
        """Ids and dims of the tables; kept for the next request, which mostly names the same tables."""
        known = self._id_arrays.get(tables)
        if known is None:
            ids = np.array([self._id(name) for name in tables], np.int32)
            known = ids, np.array([self._configs[name].dim for name in tables], np.int64)
            self._id_arrays[tables] = known
        return known

    def _shape(self, name: str) -> tuple[int, int, str]:
        self._id(name)
        return self._configs[name].dim, self._state_widths[name], self._configs[name].dtype


def _typed(values: Stored) -> tuple[int, npt.NDArray[Any]]:
    """The native row type of the values, and the values as the core takes them."""
    name = dtype_name(values)
    return _ROW_TYPES[name], values if name == "float32" else values.view(np.uint16)


def table_spec(config: TableConfig, tablet_bits: int, unknown: int = -1) -> _native.TableSpec:
    """The table's configuration as the native core takes it. unknown: id of the table of its unknown rows, or -1."""
    blocks = [_block_spec(block) for block in config.blocks]
    spec = _native.TableSpec(_ROW_TYPES[config.dtype], stream_base(config), blocks)
    spec.row_limit = row_limit(config, tablet_bits) or 0
    spec.capacity_order = _CAPACITY_ORDERS[capacity_order(config)]
    spec.trainable, spec.unknown_table = config.trainable, unknown
    admission = config.admission
    spec.admission = _ADMISSIONS[admission.kind]
    if isinstance(admission, MinCount):
        spec.admission_count, spec.counter_limit = admission.count, admission.counter_capacity
    elif isinstance(admission, Probability):
        spec.admission_probability = admission.p
    for policy in config.eviction:
        if isinstance(policy, Ttl):
            spec.ttl_seconds = policy.ttl_seconds
        elif isinstance(policy, MinL2):
            spec.min_l2 = policy.min_l2
        elif isinstance(policy, Score):
            spec.min_score = policy.min_score
            spec.show_weight, spec.click_weight = policy.show_weight, policy.click_weight
            spec.half_life_seconds = policy.half_life_seconds
    given = load_init_vectors(config)
    spec.give_vectors(given.keys, given.vectors.reshape(-1))
    return spec


def _block_spec(block: ColumnBlock) -> _native.BlockSpec:
    spec = _native.BlockSpec()
    spec.dim = block.dim
    spec.state_width = block_state_width(block)
    _set_initializer(spec, block)
    optimizer = block.optimizer
    spec.optimizer = _OPTIMIZERS[optimizer.kind]
    spec.lr = optimizer.lr
    spec.weight_decay = optimizer.weight_decay
    spec.decay_mode = _DECAY_MODES[optimizer.weight_decay_mode]
    spec.catch_up = optimizer.catch_up
    spec.clip_value = np.inf if optimizer.clip_value is None else optimizer.clip_value
    spec.clip_norm = np.inf if optimizer.clip_norm is None else optimizer.clip_norm
    spec.max_norm = np.inf if optimizer.max_norm is None else optimizer.max_norm
    spec.sum_gradients = optimizer.gradient == "sum"
    if isinstance(optimizer, Momentum):
        spec.beta1, spec.nesterov = optimizer.momentum, optimizer.nesterov
    elif isinstance(optimizer, (Adagrad, RowwiseAdagrad)):
        spec.eps, spec.initial_accumulator = optimizer.eps, optimizer.initial_accumulator
    elif isinstance(optimizer, (Adam, RowwiseAdam)):
        spec.eps = optimizer.eps
        spec.beta1 = spec.beta1_exact = optimizer.beta1
        spec.beta2 = spec.beta2_exact = optimizer.beta2
        spec.one_minus_beta1, spec.one_minus_beta2 = 1 - optimizer.beta1, 1 - optimizer.beta2
        spec.corrects_by_row = optimizer.bias_correction == "row"
    elif isinstance(optimizer, Rmsprop):
        spec.eps = optimizer.eps
        spec.beta2, spec.one_minus_beta2 = optimizer.alpha, 1 - optimizer.alpha
    elif isinstance(optimizer, Ftrl):
        spec.l1, spec.l2, spec.beta = optimizer.l1, optimizer.l2, optimizer.beta
    return spec


def _set_initializer(spec: _native.BlockSpec, block: ColumnBlock) -> None:
    initializer = block.initializer
    spec.initializer = {"zeros": 0, "constant": 0, "uniform": 1, "normal": 2, "truncated_normal": 3}[initializer.kind]
    if isinstance(initializer, Constant):
        spec.low = initializer.value
    elif isinstance(initializer, Uniform):
        low, span, below_high = uniform_constants(initializer)
        spec.low, spec.span, spec.below_high = float(low), float(span), float(below_high)
    elif isinstance(initializer, (Normal, TruncatedNormal)):
        spec.mean, spec.std = initializer.mean, initializer.std


def _table_rows(config: TableConfig, state_width: int, part: _native.PartRows) -> TableRows:
    keys, weights, state, count, touched_at, version = part[:6]
    admission_keys, admission_counts, erased, erased_versions, clicks = part[6:]
    n = len(keys)
    return TableRows(
        keys=keys,
        weights=weights.view(STORED_DTYPES[config.dtype]).reshape(n, config.dim),
        state=state.reshape(n, state_width),
        count=count,
        touched_at=touched_at,
        version=version,
        admission_keys=admission_keys,
        admission_counts=admission_counts,
        erased_keys=erased,
        erased_versions=erased_versions,
        clicks=clicks,
    )


def _duplicate(error: KeyError, request: TableKeys) -> DuplicateKeyError:
    table, key = error.args
    return DuplicateKeyError(f"expected unique keys, got key {key} more than once (table {request.tables[table]!r})")


def kernel_sets() -> tuple[str, ...]:
    """Names of the kernel sets this CPU can run, the fastest last."""
    return tuple(_native.kernel_sets())
