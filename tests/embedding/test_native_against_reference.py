"""The native group against its NumPy definition: random sequences of verbs end in the same bits."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from embershard.embedding.native_table_group import NativeTableGroup, kernel_sets
from embershard.embedding.policies import row_limit
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.row_types import STORED_DTYPES, narrow_any, widen
from embershard.embedding.table_config import (
    Adagrad,
    Adam,
    Capacity,
    ColumnBlock,
    Normal,
    RowwiseAdagrad,
    TableConfig,
    TruncatedNormal,
    Uniform,
    share,
)
from embershard.embedding.table_group import TableGroup, TableKeys, UpdateStep

from .table_samples import OPTIMIZERS, POLICY_TABLES, assert_same_rows, same_bits

BITS = 2
EDGES = [0, 1, 2**62, 2**63 - 1, 2**63, 2**64 - 1]
KEYS = np.concatenate(
    [
        np.array(EDGES, np.uint64),
        np.arange(7, 150, dtype=np.uint64) * np.uint64(0xD1B54A32D192ED03),
        np.arange(9, 40, dtype=np.uint64),
    ]
)


def request_of(rng: np.random.Generator, tables: list[TableConfig], most: int = 60) -> TableKeys:
    """A request for some of the tables with random distinct keys."""
    chosen = [table for table in tables if rng.random() < 0.7]
    return TableKeys.concat({table.name: rng.choice(KEYS, rng.integers(0, most), replace=False) for table in chosen})


def gradients_for(rng: np.random.Generator, request: TableKeys, dims: dict[str, int]) -> np.ndarray:
    """Random gradients of very different sizes, a few of them not finite or too large."""
    size = sum(dims[name] * len(request.keys_of(index)) for index, name in enumerate(request.tables))
    gradients = (rng.normal(size=size) * 10.0 ** rng.integers(-6, 3, size)).astype(np.float32)
    bad = rng.random(size) < 0.003
    gradients[bad] = rng.choice(np.array([np.nan, np.inf, -np.inf, 1e38, -1e16], np.float32), int(bad.sum()))
    return gradients


class TwinMachine(RuleBasedStateMachine):
    """Both groups get the same calls and must answer and end alike."""

    @initialize(kernels=st.sampled_from(kernel_sets()), threads=st.sampled_from([1, 2]))
    def start(self, kernels: str, threads: int) -> None:
        self.native: TableGroup = NativeTableGroup(BITS, threads, kernels)
        self.reference: TableGroup = ReferenceTableGroup(BITS)
        self.step, self.now = 0, 100
        self.bases: dict[int, int] = {}
        for config in POLICY_TABLES:
            self.native.ensure_table(config)
            self.reference.ensure_table(config)

    def tables(self) -> list[TableConfig]:
        return list(POLICY_TABLES)

    @rule(seed=st.integers(0, 2**32), masked=st.booleans(), dtype=st.sampled_from(list(STORED_DTYPES)))
    def push(self, seed: int, masked: bool, dtype: str) -> None:
        rng = np.random.default_rng(seed)
        self.step += int(rng.integers(1, 5))
        self.now += int(rng.integers(0, 20))
        request = request_of(rng, self.tables())
        gradients = narrow_any(dtype, gradients_for(rng, request, {table.name: table.dim for table in self.tables()}))
        occurrences = rng.integers(1, 4, len(request.keys)).astype(np.uint32)
        step = UpdateStep(
            examples=int(rng.integers(1, 9)),
            step=self.step,
            now=self.now,
            lr_scale=float(rng.choice([1.0, 0.37])),
            unit=seed,
            batch=self.step,
        )
        mask = rng.random(1 << BITS) < 0.7 if masked else None
        clicks = rng.integers(0, occurrences + np.uint32(1)).astype(np.uint32) if seed % 4 else None
        native = self.native.apply_gradients(request, gradients, occurrences, step, mask, clicks)
        reference = self.reference.apply_gradients(request, gradients, occurrences, step, mask, clicks)
        assert native == reference

    @rule(
        seed=st.integers(0, 2**32),
        absent=st.sampled_from(["initial", "zeros", "unseen"]),
        dtype=st.sampled_from(list(STORED_DTYPES)),
    )
    def lookup(self, seed: int, absent: str, dtype: str) -> None:
        request = request_of(np.random.default_rng(seed), self.tables(), 100)
        rows = self.native.lookup(request, absent)
        assert same_bits(rows, self.reference.lookup(request, absent))
        outs = [np.full(rows.shape, 1, STORED_DTYPES[dtype]) for _ in range(2)]
        for group, out in zip((self.native, self.reference), outs, strict=True):
            assert group.lookup(request, absent, out) is out
        assert same_bits(*outs)
        assert same_bits(outs[0], narrow_any(dtype, rows))

    @rule(seed=st.integers(0, 2**32), with_state=st.booleans(), if_absent=st.booleans(), most=st.sampled_from([8, 90]))
    def assign(self, seed: int, with_state: bool, if_absent: bool, most: int) -> None:
        rng = np.random.default_rng(seed)
        request = request_of(rng, self.tables(), most)
        lengths = np.diff(request.splits)
        dims = {table.name: table.dim for table in self.tables()}
        weights = rng.normal(size=int(sum(dims[n] * k for n, k in zip(request.tables, lengths, strict=True)))).astype(
            np.float32
        )
        widths = {name: self.reference.state_width(name) for name in request.tables}
        size = int(sum(widths[n] * k for n, k in zip(request.tables, lengths, strict=True)))
        state = np.abs(rng.normal(size=size)).astype(np.float32) if with_state else None
        mask = rng.random(1 << BITS) < 0.7 if seed % 2 else None
        native, reference = (
            group.assign(request, weights, state, if_absent=if_absent, now=self.now, tablets=mask)
            for group in (self.native, self.reference)
        )
        assert native == reference

    @rule(seed=st.integers(0, 2**32))
    def erase(self, seed: int) -> None:
        request = request_of(np.random.default_rng(seed), self.tables(), 40)
        assert self.native.erase(request) == self.reference.erase(request)

    @rule(later=st.integers(0, 50), most=st.sampled_from([None, 1, 7, 60]))
    def evict(self, later: int, most: int | None) -> None:
        self.now += later
        assert self.native.evict(self.now, most) == self.reference.evict(self.now, most)

    @rule(tablets=st.lists(st.booleans(), min_size=1 << BITS, max_size=1 << BITS).map(np.array))
    def evict_of_tablets(self, tablets: np.ndarray) -> None:
        native, reference = (group.expired(self.now, None, tablets) for group in (self.native, self.reference))
        assert same_bits(native.keys, reference.keys)
        assert tablets[(native.keys >> np.uint64(64 - BITS)).astype(int)].all()
        removed = self.native.evict(self.now, None, tablets)
        assert removed == self.reference.evict(self.now, None, tablets)
        assert sum(removed.values()) == len(native.keys)

    @rule(most=st.sampled_from([None, 3, 40]))
    def expired(self, most: int | None) -> None:
        native, reference = self.native.expired(self.now, most), self.reference.expired(self.now, most)
        assert native.tables == reference.tables
        assert same_bits(native.keys, reference.keys)

    @rule(tablet=st.integers(0, (1 << BITS) - 1))
    def cut(self, tablet: int) -> None:
        self.bases[tablet] = self.reference.snapshot(tablet).version
        assert self.native.cut(tablet) == self.reference.cut(tablet)

    @rule(tablet=st.integers(0, (1 << BITS) - 1))
    def delta(self, tablet: int) -> None:
        since = self.bases.get(tablet)
        native, reference = self.native.snapshot(tablet, since), self.reference.snapshot(tablet, since)
        for name, rows in reference.tables.items():
            assert same_bits(native.tables[name].keys, rows.keys)
            assert same_bits(native.tables[name].erased_keys, rows.erased_keys)

    @rule(tablet=st.integers(0, (1 << BITS) - 1))
    def drop_tablet(self, tablet: int) -> None:
        self.native.drop_tablet(tablet)
        self.reference.drop_tablet(tablet)

    @rule()
    def restart(self) -> None:
        """Each group is rebuilt from the other's snapshots."""
        native, reference = NativeTableGroup(BITS), ReferenceTableGroup(BITS)
        for config in POLICY_TABLES:
            native.ensure_table(config)
            reference.ensure_table(config)
        for tablet in range(1 << BITS):
            native.import_tablet(self.reference.snapshot(tablet))
            reference.import_tablet(self.native.snapshot(tablet))
        self.native, self.reference = native, reference

    @invariant()
    def same(self) -> None:
        if hasattr(self, "native"):
            assert np.array_equal(self.native.push_counts(), self.reference.push_counts())
            for config in POLICY_TABLES:
                limit = row_limit(config, BITS)
                if limit is not None:
                    quotas = np.array([share(limit, tablet, BITS) for tablet in range(1 << BITS)])
                    assert (self.native.stats()[config.name].rows_by_tablet <= quotas).all(), config.name

    def teardown(self) -> None:
        if hasattr(self, "native"):
            assert_same_rows(self.native, self.reference)


TestTwinMachine = TwinMachine.TestCase
TestTwinMachine.settings = settings(
    max_examples=6,
    stateful_step_count=20,
    deadline=None,
    suppress_health_check=list(HealthCheck),
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # shrinking takes minutes; the blob repeats a failure
    print_blob=True,
)


@pytest.mark.parametrize("kernels", kernel_sets())
@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
def test_every_optimizer_initializer_and_row_type_gives_the_same_bits(kernels: str, dtype: str) -> None:
    native, reference = NativeTableGroup(1, kernels=kernels), ReferenceTableGroup(1)
    rng = np.random.default_rng(3)
    for number, optimizer in enumerate(OPTIMIZERS):
        initializer = (Uniform(), Normal(std=1), TruncatedNormal(std=0.3))[number % 3]
        for dim in (1, (7, 16, 33, 70)[number % 4]):
            block = ColumnBlock(dim=dim, optimizer=optimizer, initializer=initializer)
            config = TableConfig(name=f"{number}-{dim}", dtype=dtype, blocks=(block,))
            native.ensure_table(config)
            reference.ensure_table(config)
    dims = {config.name: config.dim for config in reference.tables()}
    for step in range(1, 6):
        keys = rng.choice(KEYS, 20, replace=False)
        request = TableKeys.concat(dict.fromkeys(dims, keys))
        assert same_bits(native.lookup(request), reference.lookup(request))
        gradients = gradients_for(rng, request, dims)
        occurrences = rng.integers(1, 5, len(request.keys)).astype(np.uint32)
        push = UpdateStep(examples=3, step=step * step, now=step, lr_scale=(1.0, 0.6)[step % 2])
        assert native.apply_gradients(request, gradients, occurrences, push) == reference.apply_gradients(
            request, gradients, occurrences, push
        )
    assert_same_rows(native, reference)


def test_erased_keys_are_forgotten_at_the_same_moment() -> None:
    """Keys that leave for room and come back carry the number of remembered keys to its limit and over."""
    config = TableConfig(name="t", blocks=(ColumnBlock(dim=1),), eviction=(Capacity(capacity_rows=16),))
    native, reference = NativeTableGroup(0), ReferenceTableGroup(0)
    rng, forgotten = np.random.default_rng(0), set()
    for group in (native, reference):
        group.ensure_table(config)
    for now in range(400):
        request = TableKeys.of("t", rng.choice(1150, 12, replace=False))
        values, counts = rng.normal(size=12).astype(np.float32), np.ones(12, np.uint32)
        for group in (native, reference):
            group.cut(0)
            if now % 3:
                group.apply_gradients(request, values, counts, UpdateStep(now=now))
            else:
                group.assign(request, values, now=now)
        left, right = native.snapshot(0), reference.snapshot(0)
        assert left.erased_since == right.erased_since
        assert same_bits(left.tables["t"].erased_keys, right.tables["t"].erased_keys)
        forgotten.add(left.erased_since)
    assert len(forgotten) > 1
    assert_same_rows(native, reference)


@pytest.mark.parametrize("threads", [1, 3])
@pytest.mark.parametrize("if_absent", [False, True])
@pytest.mark.parametrize("given_state", [False, True])
def test_large_assigns_over_tables_with_and_without_limit_and_masks_are_the_same(
    threads: int, if_absent: bool, given_state: bool
) -> None:
    configs = (
        TableConfig(name="plain", blocks=(ColumnBlock(dim=3, optimizer=Adagrad(initial_accumulator=0.5)),)),
        TableConfig(name="capped", blocks=(ColumnBlock(dim=2),), eviction=(Capacity(capacity_rows=2_000),)),
        TableConfig(name="narrow", blocks=(ColumnBlock(dim=5, optimizer=Adam()),), dtype="bfloat16"),
    )
    native, reference = NativeTableGroup(4, threads), ReferenceTableGroup(4)
    rng = np.random.default_rng(7)
    widths, states, sizes = (3, 2, 5), (3, 2, 11), (5_000, 3_000, 4_000)
    for group in (native, reference):
        for config in configs:
            group.ensure_table(config)
    for now in range(3):
        keys = [rng.choice(6_000, size, replace=False).astype(np.uint64) << np.uint64(50) for size in sizes]
        splits = np.cumsum([0, *sizes], dtype=np.int64)
        request = TableKeys(tuple(config.name for config in configs), np.concatenate(keys), splits)
        weights = rng.normal(size=int(np.dot(sizes, widths))).astype(np.float32)
        state = rng.random(int(np.dot(sizes, states))).astype(np.float32) if given_state else None
        mask = rng.random(1 << 4) < 0.7 if now else None
        done = [
            group.assign(request, weights, state, if_absent=if_absent, now=now, tablets=mask)
            for group in (native, reference)
        ]
        assert done[0] == done[1] > 0
        for group in (native, reference):
            group.cut(3)
    assert_same_rows(native, reference)


def test_steps_beyond_the_cached_bias_corrections_give_the_same_bits() -> None:
    from embershard.embedding.table_config import Adam

    config = TableConfig(name="t", blocks=(ColumnBlock(dim=3, optimizer=Adam()),))
    native, reference = NativeTableGroup(0), ReferenceTableGroup(0)
    request = TableKeys.of("t", [5])
    for group in (native, reference):
        group.ensure_table(config)
        group.assign(request, np.ones(3, np.float32), np.array([0.1] * 6 + [4095], np.float32))
        for _ in range(4):
            group.apply_gradients(request, np.ones(3, np.float32), np.ones(1, np.uint32), UpdateStep())
    assert_same_rows(native, reference)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
@pytest.mark.parametrize("kernels", kernel_sets())
def test_large_requests_of_16_bit_values_give_the_bits_of_the_same_float32_values(kernels: str, dtype: str) -> None:
    rng = np.random.default_rng(5)
    keys = rng.integers(0, 1 << 64, 20_000, dtype=np.uint64)
    tables = {"usual": 16, "narrow": 1, "odd": 21, "wide": 130}
    request = TableKeys.concat(dict.fromkeys(tables, keys))
    halves = STORED_DTYPES.keys() - {"float32"}
    wide_group, narrow_group = (NativeTableGroup(4, threads, kernels) for threads in (1, 2))
    for group in (wide_group, narrow_group):
        for name, dim in tables.items():
            group.ensure_table(TableConfig(name=name, blocks=(ColumnBlock(dim=dim),)))
    gradients = narrow_any(dtype, rng.normal(0, 0.1, len(keys) * sum(tables.values())).astype(np.float32))
    occurrences = np.ones(len(request.keys), np.uint32)
    for step in (UpdateStep(step=1), UpdateStep(step=2)):
        wide_group.apply_gradients(request, widen(dtype, gradients), occurrences, step)
        narrow_group.apply_gradients(request, gradients, occurrences, step)
    rows = wide_group.lookup(request)
    assert same_bits(rows, narrow_group.lookup(request))
    for half in halves:
        out = np.empty(rows.shape, STORED_DTYPES[half])
        assert same_bits(narrow_group.lookup(request, "initial", out), narrow_any(half, rows))


def test_values_of_another_dtype_or_length_are_refused_and_change_nothing() -> None:
    group = NativeTableGroup(BITS)
    group.ensure_table(TableConfig(name="user", blocks=(ColumnBlock(dim=2),)))
    request, occurrences = TableKeys.of("user", np.array([1, 2], np.uint64)), np.ones(2, np.uint32)
    for wrong in (np.zeros(4), np.zeros(4, np.int16), np.zeros(4, np.uint8)):
        with pytest.raises(TypeError, match="expected values of float32, float16 or uint16"):
            group.apply_gradients(request, wrong, occurrences, UpdateStep())
        with pytest.raises(TypeError, match="expected values of float32, float16 or uint16"):
            group.lookup(request, "initial", wrong)
    for dtype in STORED_DTYPES.values():
        with pytest.raises(ValueError, match="of length 4, got 3"):
            group.apply_gradients(request, np.zeros(3, dtype), occurrences, UpdateStep())
        with pytest.raises(ValueError, match="of length 4, got 5"):
            group.lookup(request, "initial", np.zeros(5, dtype))
        read_only = np.zeros(4, dtype)
        read_only.flags.writeable = False
        with pytest.raises(TypeError):
            group.lookup(request, "initial", read_only)
    assert group.stats()["user"].rows == 0


@pytest.mark.parametrize(("row_type", "dim"), [("float32", 256), ("bfloat16", 512)])
def test_rows_of_tables_larger_than_caches_are_set_alike(row_type: str, dim: int) -> None:
    count, rng = 36_000, np.random.default_rng(0)
    group = NativeTableGroup(4, 2)
    block = ColumnBlock(dim=dim, optimizer=RowwiseAdagrad())
    group.ensure_table(TableConfig(name="user", blocks=(block,), dtype=row_type))
    keys = rng.permutation(np.arange(1, 2 * count + 1, dtype=np.uint64)) * np.uint64(0x9E3779B97F4A7C15)
    values = rng.integers(-100, 100, 2 * count * dim).astype(np.float32)  # exact in every row type
    rows, state = values.reshape(-1, dim), np.arange(2 * count, dtype=np.float32)
    first, second = np.arange(count), np.arange(count // 2, 2 * count)
    group.assign(TableKeys.of("user", keys[first]), rows[first].ravel())
    shifted = rows + 1
    done = group.assign(TableKeys.of("user", keys[second]), shifted[second].ravel(), state[second], now=7)
    assert done == len(second)
    fill = TableKeys.of("user", keys[: count // 2 + 10])
    assert group.assign(fill, np.zeros(len(fill.keys) * dim, np.float32), if_absent=True) == 0
    expected = np.where(np.arange(2 * count)[:, None] < count // 2, rows, shifted)
    assert np.array_equal(group.lookup(TableKeys.of("user", keys)).reshape(-1, dim), expected)
    number = {int(key): place for place, key in enumerate(keys)}
    for tablet in range(16):
        part = group.snapshot(tablet).tables["user"]
        place = np.array([number[int(key)] for key in part.keys])
        assert np.array_equal(part.state[:, 0], np.where(place < count // 2, 0, state[place]))
    with pytest.raises(ValueError, match="finite"):
        group.assign(TableKeys.of("user", keys[:1]), np.full(dim, np.inf, np.float32))
