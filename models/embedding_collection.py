"""EmbeddingCollection: a torch module whose weights are rows of a store."""

from __future__ import annotations

import sys
import warnings
import weakref
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

import mmh3
import torch
from torch import nn

from ..datasets.row_order import mix
from ..embedding.store import EmbeddingStore, Exchange, Pull, Push, PushReport, PushToken
from ..embedding.table_config import ColumnBlock, Initializer, Optimizer, TableConfig
from ..feature_map.batch import FeatureBatch
from .device_transfer import DeviceTransfer, choose_device
from .embedding_output import EmbeddingOutput
from .errors import StaleRowsError, StoreMismatchError
from .kept_back import KeptBack
from .keyed_jagged import KeyedJagged, ValueEncoder, feature_batch_of
from .openmp_threads import pool_on_torch_threads
from .pulled_rows import KeyedBatch, PulledRows
from .row_layout import FeatureDefinition, RowLayout
from .row_optimizer import RowOptimizer
from .table_options import TableOptions
from .tensor_batch import TensorBatch

DEFAULT_DIM = 16


class RunningLoop(Protocol):
    """A loop that carries out its pushes in a thread of its own."""

    def settle(self) -> None:
        """Wait until all pushes made so far are carried out."""


class CategoricalFeature(FeatureDefinition, Protocol):
    """What a collection reads of a categorical feature of the feature map."""

    @property
    def key_space(self) -> str: ...


class CategoricalFeatures(Protocol):
    """What a collection reads of a feature map."""

    @property
    def categorical(self) -> Sequence[CategoricalFeature]: ...


@dataclass(slots=True)
class PushCounts:
    """What became of the pushes of one collection so far.

    repeated: pushes that every tablet had before, or whose work unit was completed: nothing was applied.
    fenced: pushes refused, in some tablets, since their unit is completed or known by a newer lease.
    stale: pushes refused, in some tablets, for rows that were pulled too long ago; each comes again, recomputed.
    applied, created, not_admitted, refused (non-finite gradients), over_limit: rows.
    evicted: rows by table that made room for new ones.
    kept_back: by table, what was not applied since it would have harmed the table.
    """

    pushes: int = 0
    repeated: int = 0
    fenced: int = 0
    stale: int = 0
    applied: int = 0
    created: int = 0
    not_admitted: int = 0
    refused: int = 0
    over_limit: int = 0
    evicted: Counter[str] = field(default_factory=Counter)
    kept_back: KeptBack = field(default_factory=KeptBack)

    def add(self, report: PushReport) -> None:
        """Count one more report."""
        self.pushes += 1
        self.fenced += report.fenced > 0
        self.stale += report.stale > 0
        self.repeated += report.applied == 0 and report.duplicate + report.fenced > 0
        for table, update in report.tables.items():
            self.evicted[table] += update.evicted
            self.applied += update.applied
            self.created += update.created
            self.not_admitted += update.not_admitted
            self.refused += update.non_finite
            self.over_limit += update.over_limit
        self.kept_back.add(report)


class EmbeddingCollection(nn.Module):
    """Embeddings of all categorical features of a feature map, one table a feature unless features share one.

    In training mode absent rows read their initial weights and pulls may be trained; in evaluation mode they read the
    table's `unseen` vector. The module has no parameters: `optimizer()` trains the rows. `torch.compile` of a module
    that holds it leaves pulls out of its graphs.

    lease: of the pushes' tokens; who goes on from a checkpoint over the store that was trained after it raises it.
    repeats_expected: whether pushes that the store has had before are as they should be, as in a loop that goes on over
    shards that lived while it did not; else the first one is warned of.

    Thread safety: one training thread; `prefetch` runs `prepare` and `exchange` in threads of its own.
    Invariants: 1. a pull never changes the store. 2. a pulled batch is pushed at most once, under the batch's token,
    which names the collection's tables too: collections of other tables push the same batch to one store.
    """

    def __init__(
        self,
        features: CategoricalFeatures,
        store: EmbeddingStore,
        *,
        dim: int | None = None,
        blocks: Sequence[ColumnBlock] | None = None,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        options: TableOptions | None = None,
        tables: Mapping[str, TableConfig] | None = None,
        device: str | torch.device = "auto",
    ) -> None:
        """dim, optimizer, initializer: rows of one block (16, Adagrad, uniform ±0.01 unless given); a dim that the
                 feature map gives a feature comes first.
        blocks:  several column blocks instead, each with its own dim, optimizer and initializer.
        options: admission, eviction, dtype, seed … of every table.   tables: whole configurations of some tables.
        Raises: TableConflictError if the store has such a table with another configuration; nothing is changed."""
        super().__init__()
        if not hasattr(features, "categorical"):
            raise TypeError(f"expected a FeatureMap, got {features!r}")
        if not hasattr(store, "exchange"):
            raise TypeError(f"expected a store (LocalStore, or what es.connect gives), got {store!r}")
        made = _blocks(dim, blocks, optimizer, initializer)
        configs = table_configs(features, made, options or TableOptions(), resize=blocks is None)
        others = set(tables or ()) - set(configs)
        if others:
            raise ValueError(f"expected tables of the feature map {sorted(configs)}, got others too: {sorted(others)}")
        for name, given in (tables or {}).items():
            if (given.name, given.key_space) != (name, configs[name].key_space):
                raise ValueError(
                    f"expected name {name!r} and key space {configs[name].key_space!r}, as the feature map says, got "
                    f"{given.name!r} and {given.key_space!r} (tables[{name!r}])"
                )
        configs.update(tables or {})
        self.layout = RowLayout(features.categorical, configs)
        self.features = features
        self.store = store
        self.transfer = DeviceTransfer(choose_device(device))
        self.lease = 1
        self.checkpoint: str | None = None
        self.counts = PushCounts()
        self.repeats_expected = False
        self._has_warned = False
        self._row_optimizer: RowOptimizer | None = None
        self._pulled_before: PulledRows | None = None
        self._unit_salt = mmh3.hash64("\0".join(sorted(self.layout.tables)).encode(), signed=False)[0]
        self._loops: weakref.WeakSet[RunningLoop] = weakref.WeakSet()
        pool_on_torch_threads(torch.get_num_threads())
        store.ensure_tables(self.layout.configs)

    @property
    def device(self) -> torch.device:
        """Where pulled rows are put."""
        return self.transfer.device

    def optimizer(self) -> RowOptimizer:
        """The torch optimizer over the rows pulled in training mode; the same object each time.

        When it is made it takes the last pull too, unless backward has reached it."""
        if self._row_optimizer is None:
            self._row_optimizer = RowOptimizer(self.push, self._learning_rate())
            if self._pulled_before is not None and not self._pulled_before.has_gradients:
                self._row_optimizer.expect(self._pulled_before)
            self._pulled_before = None
        return self._row_optimizer

    def forward(
        self, batch: FeatureBatch | TensorBatch | KeyedJagged, *, values_are_keys: bool = False
    ) -> EmbeddingOutput:
        """The batch's embeddings, pulled now, after the pushes made so far in `prefetch` loops.

        batch: a KeyedJaggedTensor holds raw ids, or keys if `values_are_keys`.

        Raises: FeatureMismatchError; whatever the store raises."""
        # Only where it is loaded already, as it takes a second: torch.compile of a module with the collection in it.
        if "torch._dynamo" in sys.modules:
            pull = torch.compiler.disable(self._pull)  # type: ignore[no-untyped-call]
            return pull(batch, values_are_keys=values_are_keys)
        return self._pull(batch, values_are_keys=values_are_keys)

    def _pull(self, batch: FeatureBatch | TensorBatch | KeyedJagged, *, values_are_keys: bool) -> EmbeddingOutput:
        if isinstance(batch, TensorBatch):
            batch = batch.features
        elif not isinstance(batch, FeatureBatch):
            encoder: ValueEncoder | None = None if values_are_keys else self.features  # type: ignore[assignment]
            batch = feature_batch_of(batch, self.layout.features, encoder)
        keyed = self.prepare(batch)
        self.settle()
        pulled = self.pulled(keyed, self.exchange(None, keyed, training=self.training))
        if self.training and torch.is_grad_enabled():
            pulled.require_gradients()
            if self._row_optimizer is not None:
                self._row_optimizer.expect(pulled)
            else:
                self._pulled_before = pulled
        return EmbeddingOutput(pulled)

    def prepare(self, batch: FeatureBatch, *, for_push: bool = False) -> KeyedBatch:
        """The batch with its unique keys. for_push: and with what its push can have done before there are gradients.

        Thread safety: any thread."""
        if not isinstance(batch, FeatureBatch):
            raise TypeError(f"expected a FeatureBatch, as a feature map encodes them, got {type(batch).__name__}")
        unique = self.layout.deduplicate(batch)
        return KeyedBatch(batch, unique, self.store.prepare_push(unique.keys, unique.occurrences) if for_push else None)

    def exchange(self, push: Push | None, keyed: KeyedBatch | None, *, training: bool) -> Exchange:
        """One data call: apply the push, then read the rows of `keyed`. Thread safety: any thread, one at a time."""
        pull = None if keyed is None else Pull(keyed.unique.keys, "initial" if training else "unseen")
        answer = self.store.exchange(push, pull)
        if answer.report is not None:
            repeated = self.counts.repeated
            self.counts.add(answer.report)
            if self.counts.repeated > repeated and not (self.repeats_expected or self._has_warned):
                self._has_warned = True
                warnings.warn(
                    "a batch was not trained: the store had its push before, and takes each batch once. Batches that "
                    "are to be trained again come from a new pass over the click log, or have no id "
                    "(dataclasses.replace(batch, id=None)). `embeddings.counts.repeated` counts such pushes",
                    stacklevel=2,
                )
        return answer

    def settle(self) -> None:
        """Wait until all pushes made so far are in the store.

        `rows.step()` in a `prefetch` loop hands its push over and goes on: who reads the store itself in the loop, or
        saves it, waits first. At a depth above 0 batches that are pulled before such a push are waited for too.
        Thread safety: the training thread."""
        for loop in list(self._loops):
            loop.settle()

    def enter(self, loop: RunningLoop) -> None:
        """Know of a loop that pushes in a thread of its own; it is known for as long as it lives."""
        self.settle()
        self._loops.add(loop)

    def complete_unit(self, unit: int) -> None:
        """Let the store drop what it remembers of a work unit's pushes (24 bytes a tablet), once those made are in it.

        unit: as batch ids name it, when all its batches are trained; later ones would be refused, also one that comes
        again for its age."""
        self.settle()
        self.store.complete_unit(self._token_unit(unit))

    def _token_unit(self, unit: int) -> int:
        return mix(self._unit_salt, unit)

    def pulled(self, keyed: KeyedBatch, answer: Exchange, *, recomputed: bool = False) -> PulledRows:
        """The rows that an exchange read for `keyed`; `recomputed`: again, after its first push was stale."""
        if answer.rows is None:
            raise ValueError("expected an exchange with a pull, got one without")
        return PulledRows(keyed, answer.rows, self.layout, self.transfer, recomputed=recomputed)

    def push(self, pulled: PulledRows, *, step: int, lr_scale: float) -> None:
        """Send the gradients of a pulled batch to the store, under the batch's token.

        Raises: StaleRowsError where a tablet refuses them for the age of the rows."""
        push = self.make_push(pulled, step=step, lr_scale=lr_scale)
        self.settle()
        report = self.exchange(push, None, training=True).report
        if report is not None and report.stale:
            raise StaleRowsError(
                f"expected gradients of rows within the store's max_staleness, got older ones in {report.stale} "
                f"tablets ({pulled.batch.id}): they were not applied there; es.prefetch pulls such a batch again, or "
                "call embeddings(batch) again and make another step"
            )

    def make_push(self, pulled: PulledRows, *, step: int, lr_scale: float) -> Push:
        """The push of a pulled batch's gradients, which are taken from its leaves."""
        batch = pulled.batch
        token = None if batch.id is None else PushToken(self._token_unit(batch.id.unit), self.lease, batch.id.index)
        return pulled.push(pulled.take_gradients(), token, step=step, now=push_time(batch), lr_scale=lr_scale)

    def rows_by_table(self) -> dict[str, int]:
        """Rows of each table of this collection."""
        stats = self.store.stats()
        return {table: stats[table].rows for table in self.layout.tables}

    def get_extra_state(self) -> dict[str, Any]:
        """For `state_dict`: which store the rows are in, and the last checkpoint. Not the rows."""
        return {"store": self.store.identity, "checkpoint": self.checkpoint, "tables": list(self.layout.tables)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """For `load_state_dict`. Raises: StoreMismatchError unless these are the rows the state was saved beside."""
        same_rows = state["store"] == self.store.identity
        same_checkpoint = state["checkpoint"] is not None and state["checkpoint"] == self.checkpoint
        if not (same_rows or same_checkpoint):
            raise StoreMismatchError(
                f"expected a state of store {self.store.identity!r} or of checkpoint {self.checkpoint!r}, got one of "
                f"store {state['store']!r}, checkpoint {state['checkpoint']!r}: a state dict carries no rows; restore "
                "the checkpoint into the store first"
            )
        if list(state["tables"]) != list(self.layout.tables):
            raise StoreMismatchError(f"expected tables {list(self.layout.tables)}, got {state['tables']}")

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddingCollection:
        raise TypeError(
            "expected one module to one set of rows, got deepcopy of an EmbeddingCollection: the copy would train the "
            "same rows; make another collection over the store you mean"
        )

    def _learning_rate(self) -> float:
        rates = {block.optimizer.lr for config in self.layout.configs for block in config.blocks}
        return rates.pop() if len(rates) == 1 else 1.0


def push_time(batch: FeatureBatch) -> int:
    """`now` of the batch's push: seconds of its latest event, 0 where it has no event times."""
    times = batch.event_time
    return 0 if times is None or len(times) == 0 else min(max(int(times.max()), 0), (1 << 32) - 1)


def table_configs(
    features: CategoricalFeatures, blocks: Sequence[ColumnBlock], options: TableOptions, *, resize: bool = False
) -> dict[str, TableConfig]:
    """Configuration of each table that the features read, by name, in the order in which features name them.

    resize: blocks take the dim that the feature map gives a table; else one of them must have it.
    Raises: ValueError where none has."""
    own_dims = {table.name: table.dim for table in getattr(features, "tables", ()) if table.dim is not None}
    configs: dict[str, TableConfig] = {}
    for feature in features.categorical:
        name = feature.table
        if name not in configs:
            own_blocks = _of_dim(tuple(blocks), own_dims.get(name), name, resize=resize)
            configs[name] = options.table(name, feature.key_space, own_blocks)
    return configs


def _blocks(
    dim: int | None,
    blocks: Sequence[ColumnBlock] | None,
    optimizer: Optimizer | None,
    initializer: Initializer | None,
) -> tuple[ColumnBlock, ...]:
    if blocks is not None:
        if dim is not None or optimizer is not None or initializer is not None:
            raise ValueError("expected either blocks or dim, optimizer and initializer, got both")
        return tuple(blocks)
    chosen: dict[str, Any] = {"dim": DEFAULT_DIM if dim is None else dim}
    if optimizer is not None:
        chosen["optimizer"] = optimizer
    if initializer is not None:
        chosen["initializer"] = initializer
    return (ColumnBlock(**chosen),)


def _of_dim(blocks: tuple[ColumnBlock, ...], dim: int | None, table: str, *, resize: bool) -> tuple[ColumnBlock, ...]:
    """The blocks of one table, by the dim that the feature map gives it. Raises: ValueError where they differ."""
    if dim is None or any(block.dim == dim for block in blocks):
        return blocks
    if resize:
        return tuple(block.model_copy(update={"dim": dim}) for block in blocks)
    dims = {block.name: block.dim for block in blocks}
    raise ValueError(f"expected a block of dim {dim}, as the feature map says of table {table!r}, got {dims}")
