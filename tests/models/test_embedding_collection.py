"""EmbeddingCollection: what models read, what backward sends, and what it refuses."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from model_fakes import CLICK_FEATURES, Feature, Features, RecordingStore, bags, click_batches, local_store

import embershard as es
from embershard.datasets.work_unit import BatchId
from embershard.embedding.batch_rows import Bags, Pooling, RowColumns, pooled_fields
from embershard.embedding.errors import TableConflictError
from embershard.embedding.reference import ReferenceTableGroup
from embershard.embedding.store import Pull
from embershard.embedding.table_config import Adagrad, ColumnBlock, Score, Sgd, TableConfig, Uniform, Zeros
from embershard.embedding.table_group import TableKeys
from embershard.models.embedding_collection import EmbeddingCollection
from embershard.models.errors import FeatureMismatchError, StaleRowsError, StoreMismatchError
from embershard.models.row_functions import pooled, pooled_by_torch
from embershard.models.row_layout import RowLayout
from embershard.ps_server import LocalStore, StalenessLimit

SGD = Sgd(lr=1.0)
FM_BLOCKS = (
    ColumnBlock(name="linear", dim=1, initializer=Uniform(low=-1, high=1), optimizer=SGD),
    ColumnBlock(name="factors", dim=3, initializer=Uniform(low=-1, high=1), optimizer=SGD),
)


def weights(store: object, table: str, keys: list[int], absent: str = "zeros") -> np.ndarray:
    request = TableKeys.of(table, np.array(keys, np.uint64))
    values = store.exchange(None, Pull(request, absent)).rows.values  # type: ignore[attr-defined, arg-type]
    return values.reshape(len(keys), -1)


def test_pooled_output_is_like_a_keyed_tensor() -> None:
    embeddings = EmbeddingCollection(CLICK_FEATURES, local_store(), dim=4)
    out = embeddings(click_batches(1, size=5)[0])
    assert out.keys() == ["user", "item", "tags"]
    assert out.length_per_key() == [4, 4, 4]
    assert out.values().shape == (5, 12)
    for place, (name, vectors) in enumerate(out.to_dict().items()):
        assert torch.equal(vectors, out.values()[:, 4 * place : 4 * place + 4])
        assert torch.equal(vectors, out[name])
    with pytest.raises(KeyError, match=r"expected one of features .* got 'shop'"):
        out["shop"]


def test_features_of_unequal_tables_keep_their_order() -> None:
    features = Features.of(a="sum", b="sum", c="sum")
    wide = TableConfig(name="b", blocks=(ColumnBlock(dim=5),))
    store = local_store()
    embeddings = EmbeddingCollection(features, store, dim=2, tables={"b": wide})
    out = embeddings(bags({"a": [[1]], "b": [[2]], "c": [[3]]}))
    assert out.length_per_key() == [2, 5, 2]
    want = np.concatenate([weights(store, table, [key], "initial") for table, key in [("a", 1), ("b", 2), ("c", 3)]], 1)
    np.testing.assert_array_equal(out.values().detach().numpy(), want)


def test_block_over_tables_of_two_layouts_keeps_feature_order() -> None:
    features = Features.of(a="sum", b="sum", c="sum")
    both = TableConfig(name="b", blocks=FM_BLOCKS)
    only = ColumnBlock(name="factors", dim=3)
    store = local_store()
    embeddings = EmbeddingCollection(features, store, blocks=[only], tables={"b": both})
    out = embeddings(bags({"a": [[1]], "b": [[2]], "c": [[3]]}))
    assert out.block("factors").shape == (1, 3, 3)
    assert out.block("linear").shape == (1, 1, 1)
    want = [weights(store, "a", [1], "initial")[0], weights(store, "b", [2], "initial")[0, 1:]]
    want.append(weights(store, "c", [3], "initial")[0])
    np.testing.assert_array_equal(out.block("factors")[0].detach().numpy(), want)
    terms = out.interaction(torch.zeros(1, 0), linear=None)
    assert terms.mlp_input.shape == (1, 9)


def test_sequence_feature_is_like_a_jagged_tensor() -> None:
    features = Features.of(user="sum", history="none")
    store = local_store()
    embeddings = EmbeddingCollection(features, store, dim=2, optimizer=SGD)
    rows = embeddings.optimizer()
    out = embeddings(bags({"user": [[1], [1], [1]], "history": [[5, 6], [], [5]]}))
    assert out.keys() == ["user"]
    assert out.sequence_keys() == ["history"]
    history = out.sequence("history")
    assert history.offsets().tolist() == [0, 2, 2, 3]
    assert history.lengths().tolist() == [2, 0, 1]
    table = weights(store, "history", [5, 6], "initial")
    np.testing.assert_array_equal(history.values().detach().numpy(), table[[0, 1, 0]])
    padded = history.to_padded_dense()
    assert padded.shape == (3, 2, 2)
    assert padded[1].abs().sum() == 0
    assert torch.equal(padded[2, 0], history.values()[2])
    assert [len(part) for part in history.to_dense()] == [2, 0, 1]
    history.values().sum().backward()
    rows.step()
    np.testing.assert_array_equal(weights(store, "history", [5, 6]), table - np.float32([[2, 2], [1, 1]]))
    with pytest.raises(KeyError, match="a sequence feature"):
        out["history"]


def test_gradients_of_shared_table_are_summed_over_features() -> None:
    features = Features((Feature("item", "items"), Feature("last_item", "items")))
    store = local_store()
    embeddings = EmbeddingCollection(features, store, dim=1, optimizer=SGD, initializer=Zeros())
    rows = embeddings.optimizer()
    out = embeddings(bags({"item": [[1], [2]], "last_item": [[1], [1]]}))
    out.values().sum().backward()
    rows.step()
    assert weights(store, "items", [1, 2]).ravel().tolist() == [-3, -1]
    assert store.stats()["items"].rows == 2


def test_evaluation_reads_unseen_and_never_grows_a_table() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(CLICK_FEATURES, store, dim=4).eval()
    out = embeddings(click_batches(1)[0])
    assert out.values().abs().sum() == 0
    assert not out.values().requires_grad
    assert embeddings.rows_by_table() == {"user": 0, "item": 0, "tags": 0}
    assert embeddings.train()(click_batches(1)[0]).values().abs().sum() > 0
    assert embeddings.rows_by_table() == {"user": 0, "item": 0, "tags": 0}


def test_push_carries_token_occurrences_and_event_time() -> None:
    store = RecordingStore(local_store())
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1)
    rows = embeddings.optimizer()
    batch = bags({"user": [[4], [4], [9]]}, id=BatchId(77, 3), event_time=[5, 1_700_000_000, 6])
    embeddings(batch).values().sum().backward()
    rows.step()
    push, pull = store.calls[-1]
    assert pull is None
    assert push is not None
    assert push.token is not None
    assert (push.token.unit, push.token.lease, push.token.batch) == (embeddings._token_unit(77), 1, 3)
    assert push.occurrences.tolist() == [2, 1]
    assert (push.examples, push.step, push.now, push.lr_scale) == (3, 1, 1_700_000_000, 1.0)


def clicks_pushed(features: Features, label: object, **tables: TableConfig) -> list[int] | None:
    """What one step pushes as clicks for users 4 4 9, shops 5 6 6 and tags [1 2] [] [2 2 3]."""
    store = RecordingStore(local_store())
    embeddings = EmbeddingCollection(features, store, dim=1, tables=tables)
    rows = embeddings.optimizer()
    batch = bags({"user": [[4], [4], [9]], "shop": [[5], [6], [6]], "tags": [[1, 2], [], [2, 2, 3]]}, label=label)
    embeddings(batch).values().sum().backward()
    rows.step()
    push, _ = store.calls[-1]
    assert push is not None
    assert push.keys.keys.tolist() == [4, 9, 5, 6, 1, 2, 3]
    return None if push.clicks is None else push.clicks.tolist()


def test_push_carries_clicks_of_the_tables_that_keep_them() -> None:
    features = Features.of(user="sum", shop="sum", tags="sum")
    keeping = {
        table: TableConfig(
            name=table,
            blocks=(ColumnBlock(dim=1),),
            eviction=(Score(min_score=1.0, half_life_seconds=60, click_weight=1.0),),
        )
        for table in ("user", "tags")
    }
    assert clicks_pushed(features, [1.0, 0.0, 1.0], **keeping) == [1, 1, 0, 0, 1, 3, 1]
    assert clicks_pushed(features, [0.0, 1.0, 0.4], **keeping) == [1, 0, 0, 0, 0, 0, 0]
    several = [[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]]
    assert clicks_pushed(features, several, **keeping) == [2, 0, 0, 0, 1, 1, 0]
    assert clicks_pushed(features, None, **keeping) is None


def test_push_carries_no_clicks_where_no_table_keeps_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("embershard.models.row_layout.count_clicks", None)
    shows = TableConfig(
        name="user", blocks=(ColumnBlock(dim=1),), eviction=(Score(min_score=1.0, half_life_seconds=60),)
    )
    assert clicks_pushed(Features.of(user="sum", shop="sum", tags="sum"), [1.0, 1.0, 1.0], user=shows) is None


def test_batch_without_id_is_pushed_each_time() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    rows = embeddings.optimizer()
    for _ in range(2):
        embeddings(bags({"user": [[4]]})).values().sum().backward()
        rows.step()
    assert weights(store, "user", [4]).tolist() == [[-2]]


def test_batch_with_id_is_applied_once() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    rows = embeddings.optimizer()

    def step(id: BatchId | None) -> None:
        embeddings(bags({"user": [[4]]}, id=id)).values().sum().backward()
        rows.step()

    step(BatchId(5, 0))
    with pytest.warns(UserWarning, match="a batch was not trained: the store had its push before"):
        step(BatchId(5, 0))
    step(BatchId(5, 0))  # said once
    assert weights(store, "user", [4]).tolist() == [[-1]]
    assert embeddings.counts.repeated == 2
    step(None)
    assert weights(store, "user", [4]).tolist() == [[-2]]


def test_a_loop_that_expects_repeated_pushes_is_not_warned() -> None:
    embeddings = EmbeddingCollection(Features.of(user="sum"), local_store(), dim=1)
    embeddings.repeats_expected = True
    rows = embeddings.optimizer()
    for _ in range(2):
        embeddings(bags({"user": [[4]]}, id=BatchId(5, 0))).values().sum().backward()
        rows.step()
    assert embeddings.counts.repeated == 1


def test_collections_of_other_tables_push_the_same_batch_to_one_store() -> None:
    """Two towers over one click log; a table that both have gets both gradients."""
    store = local_store()
    towers = [
        EmbeddingCollection(Features.of(**names), store, dim=1, optimizer=SGD, initializer=Zeros())
        for names in ({"user": "sum", "shared": "sum"}, {"item": "sum", "shared": "sum"})
    ]
    batch = {"user": [[4]], "item": [[4]], "shared": [[4]]}
    for tower in towers:
        own = {name: batch[name] for name in tower.layout.features}
        tower.optimizer()
        tower(bags(own, id=BatchId(5, 0))).values().sum().backward()
    for tower in towers:
        tower.optimizer().step()
    assert [weights(store, name, [4]).tolist() for name in batch] == [[[-1]], [[-1]], [[-2]]]
    for tower in towers:
        tower.complete_unit(5)
        tower.repeats_expected = True
        own = {name: batch[name] for name in tower.layout.features}
        tower(bags(own, id=BatchId(5, 1))).values().sum().backward()
        tower.optimizer().step()
        assert tower.counts.repeated == 1  # fenced: its unit is complete


def test_gradients_of_two_pulls_of_one_batch_are_summed() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    rows = embeddings.optimizer()
    batch = bags({"user": [[4], [9]]}, id=BatchId(5, 0))
    (embeddings(batch).values().sum() + 2 * embeddings(batch).values()[1].sum()).backward()
    rows.step()
    assert embeddings.counts.pushes == 1
    assert weights(store, "user", [4, 9]).tolist() == [[-1], [-3]]


def test_a_pull_before_the_optimizer_is_asked_for_is_trained() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    out = embeddings(bags({"user": [[4]]}, id=BatchId(5, 0)))
    rows = embeddings.optimizer()
    out.values().sum().backward()
    rows.step()
    assert weights(store, "user", [4]).tolist() == [[-1]]


def test_gradients_looked_at_before_there_is_an_optimizer_are_not_pushed() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    embeddings(bags({"user": [[4]]}, id=BatchId(5, 0))).values().sum().backward()
    rows = embeddings.optimizer()
    embeddings(bags({"user": [[9]]}, id=BatchId(5, 1))).values().sum().backward()
    rows.step()
    assert weights(store, "user", [4, 9]).tolist() == [[0], [-1]]


def test_a_stale_batch_does_not_keep_the_others_of_its_step() -> None:
    store = LocalStore(tables=ReferenceTableGroup(2), staleness=StalenessLimit(max_staleness=0))
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    rows = embeddings.optimizer()
    old = embeddings(bags({"user": [[4]]}, id=BatchId(5, 0)))
    fresh = bags({"user": [[4]]}, id=BatchId(6, 0))
    other = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    out = other(fresh)
    other.optimizer()
    out.values().sum().backward()
    other.optimizer().step()
    new = embeddings(bags({"user": [[4]]}, id=BatchId(7, 0)))
    (old.values().sum() + new.values().sum()).backward()
    with pytest.raises(StaleRowsError, match=r"BatchId\(unit=5, batch=0\)|BatchId\(unit=5, index=0\)"):
        rows.step()
    assert weights(store, "user", [4]).tolist() == [[-2]]


@pytest.mark.parametrize("look", [torch.no_grad, torch.inference_mode])
def test_a_look_at_the_vectors_without_gradients_does_not_keep_them_from_training(look: Any) -> None:
    store = local_store()
    features = Features.of(user="sum", item="none")
    embeddings = EmbeddingCollection(features, store, dim=1, optimizer=SGD, initializer=Zeros())
    rows = embeddings.optimizer()
    out = embeddings(bags({"user": [[4]], "item": [[5]]}, id=BatchId(5, 0)))
    with look():
        assert out.values().sum() == out.sequence("item").values().sum() == 0
    assert out.values() is out.values()
    (out.values().sum() + out.sequence("item").values().sum()).backward()
    rows.step()
    assert weights(store, "user", [4]).tolist() == weights(store, "item", [5]).tolist() == [[-1]]


def test_a_stale_push_without_prefetch_is_an_error_not_a_lost_batch() -> None:
    store = LocalStore(tables=ReferenceTableGroup(2), staleness=StalenessLimit(max_staleness=0))
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    rows = embeddings.optimizer()
    first, second = (embeddings(bags({"user": [[4]]}, id=BatchId(5, index))) for index in range(2))
    first.values().sum().backward()
    second.values().sum().backward()
    with pytest.raises(StaleRowsError, match=r"within the store's max_staleness, got older ones in 1 tablets"):
        rows.step()
    embeddings(bags({"user": [[4]]}, id=BatchId(5, 1))).values().sum().backward()
    rows.step()
    assert weights(store, "user", [4]).tolist() == [[-2]]


def test_a_table_of_another_name_or_key_space_than_the_feature_maps_is_refused() -> None:
    store = local_store()
    for table in (
        TableConfig(name="user", key_space="other", blocks=(ColumnBlock(dim=2),)),
        TableConfig(name="usr", blocks=(ColumnBlock(dim=2),)),
    ):
        with pytest.raises(
            ValueError, match=r"expected name 'user' and key space 'user', as the feature map says, got"
        ):
            EmbeddingCollection(Features.of(user="sum"), store, tables={"user": table})
    assert store.tables() == ()


def test_torch_defaults_do_not_reach_native_functions() -> None:
    embeddings = EmbeddingCollection(Features.of(user="sum", item="mean"), local_store(), blocks=FM_BLOCKS)
    before = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        out = embeddings(bags({"user": [[4]], "item": [[4, 5]]}))
        terms = out.interaction(torch.zeros((1, 0), dtype=torch.float32))
        (out.values().sum() + terms.second_order.sum()).backward()
    finally:
        torch.set_default_dtype(before)
    assert out.values().dtype == torch.float32


def test_empty_batch_and_batch_of_empty_bags_b19_b21() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(CLICK_FEATURES, store, dim=4)
    rows = embeddings.optimizer()
    for lists in ({"user": [], "item": [], "tags": []}, {"user": [[]], "item": [[]], "tags": [[]]}):
        out = embeddings(bags(lists))
        assert out.values().abs().sum() == 0
        out.values().sum().backward()
        rows.step()
    assert sum(embeddings.rows_by_table().values()) == 0


def test_interaction_equals_plain_torch_with_gradients() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(CLICK_FEATURES, store, blocks=FM_BLOCKS)
    batch = click_batches(1, size=6, dense=2)[0]
    dense = torch.from_numpy(batch.dense).requires_grad_()

    fused = embeddings(batch)
    terms = fused.interaction(dense)
    plain = embeddings(batch)
    fields, linear = plain.block("factors"), plain.block("linear")
    again = torch.from_numpy(batch.dense).requires_grad_()
    second = 0.5 * (fields.sum(1) ** 2 - (fields**2).sum(1)).sum(1)
    wanted = (torch.cat([fields.flatten(1), again], 1), linear.sum((1, 2)), second)
    mix = torch.randn(wanted[0].shape, generator=torch.Generator().manual_seed(1))
    for got, want in zip((terms.mlp_input, terms.first_order, terms.second_order), wanted, strict=True):
        torch.testing.assert_close(got, want)
    ((terms.mlp_input * mix).sum() + (terms.first_order * 3 + terms.second_order.square()).sum()).backward()
    ((wanted[0] * mix).sum() + (wanted[1] * 3 + wanted[2].square()).sum()).backward()
    torch.testing.assert_close(fused.rows.leaves[0].grad, plain.rows.leaves[0].grad)
    assert torch.equal(dense.grad, again.grad)  # type: ignore[arg-type]


@pytest.mark.parametrize("pooling", list(Pooling))
@pytest.mark.parametrize("weighted", [False, True])
def test_native_pooling_equals_torch_operations(pooling: Pooling, weighted: bool) -> None:
    rng = np.random.default_rng(int(pooling))
    examples, lengths = 12, rng.integers(0, 4, 24)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
    inverse = rng.integers(2, 9, offsets[-1]).astype(np.int32)
    value_weights = rng.uniform(0.5, 2, offsets[-1]).astype(np.float32) if weighted else None
    bags_ = Bags(inverse, offsets, value_weights, pooled_fields([1, 0], [0, 3], [pooling] * 2, [False] * 2))
    rows = torch.from_numpy(rng.standard_normal((7, 5)).astype(np.float32))
    results = []
    for pool in (pooled, pooled_by_torch):
        leaf = rows.clone().requires_grad_()
        out = pool(leaf, RowColumns(1, 3, 2), bags_, examples, torch.from_numpy(inverse))
        (out * (torch.arange(out.numel()).view_as(out) - out.numel() // 2)).sum().backward()
        results.append((out, leaf.grad))
    torch.testing.assert_close(results[0], results[1])


def test_batch_of_other_features_is_refused() -> None:
    embeddings = EmbeddingCollection(CLICK_FEATURES, local_store())
    with pytest.raises(FeatureMismatchError, match=r"expected a batch with features .*'user'.* got \['item'"):
        embeddings(bags({"item": [[1]], "user": [[1]], "tags": [[1]]}))


def test_conflicting_table_is_refused_by_name() -> None:
    store = local_store()
    EmbeddingCollection(CLICK_FEATURES, store, dim=4)
    with pytest.raises(TableConflictError, match=r"expected blocks\[0\]\.dim 4, got 8 \(table 'user', which"):
        EmbeddingCollection(CLICK_FEATURES, store, dim=8)


def test_two_ways_to_say_blocks_at_once_are_refused() -> None:
    with pytest.raises(ValueError, match="either blocks or dim"):
        EmbeddingCollection(CLICK_FEATURES, local_store(), dim=4, blocks=FM_BLOCKS)
    with pytest.raises(ValueError, match=r"got others too: \['shop'\]"):
        EmbeddingCollection(CLICK_FEATURES, local_store(), tables={"shop": TableConfig(name="shop", blocks=FM_BLOCKS)})
    with pytest.raises(ValueError, match=r"expected pooling in .* got 'average' \(feature 'user'\)"):
        EmbeddingCollection(Features.of(user="average"), local_store())


def test_dim_of_the_feature_map_comes_first() -> None:
    features = es.FeatureMap([es.Categorical(name="user", dim=3), es.Categorical(name="item")])
    embeddings = EmbeddingCollection(features, local_store(), dim=5)
    assert [config.dim for config in embeddings.layout.configs] == [3, 5]
    with pytest.raises(ValueError, match=r"expected a block of dim 3, as the feature map says of table 'user', got"):
        EmbeddingCollection(features, local_store(), blocks=[ColumnBlock(name="factors", dim=4)])
    EmbeddingCollection(features, local_store(), blocks=FM_BLOCKS)  # its factors have dim 3


def test_raw_ids_of_a_keyed_jagged_tensor_get_the_keys_of_the_click_log() -> None:
    features = es.FeatureMap([es.Categorical(name="user"), es.Categorical(name="tags")])
    store = RecordingStore(local_store())
    EmbeddingCollection(features, store)(Jagged(torch.tensor([8, 1, 2, 3, 7, -1]), [1, 0, 2, 1, 1, 1]))
    pull = store.calls[-1][1]
    assert pull is not None
    assert pull.keys.keys_of(0).tolist() == [features.key("user", 7), features.key("user", -1)]


def test_deepcopy_is_refused() -> None:
    model = torch.nn.ModuleList([EmbeddingCollection(CLICK_FEATURES, local_store())])
    with pytest.raises(TypeError, match="one module to one set of rows"):
        copy.deepcopy(model)


def test_state_dict_carries_the_store_not_the_rows_and_refuses_another() -> None:
    store = local_store()
    embeddings = EmbeddingCollection(CLICK_FEATURES, store, dim=4)
    embeddings.checkpoint = "step-000000010"
    state = embeddings.state_dict()
    assert list(embeddings.parameters()) == []
    embeddings.load_state_dict(state)
    other = EmbeddingCollection(CLICK_FEATURES, local_store(), dim=4)
    with pytest.raises(StoreMismatchError, match="carries no rows"):
        other.load_state_dict(state)
    other.checkpoint = "step-000000010"  # the same checkpoint was restored into it
    other.load_state_dict(state)


class Jagged:
    """The shape of a KeyedJaggedTensor."""

    def __init__(self, values: torch.Tensor, lengths: list[int], value_weights: torch.Tensor | None = None) -> None:
        self._values, self._lengths, self._weights = values, torch.tensor(lengths), value_weights

    def keys(self) -> list[str]:
        return ["other", "tags", "user"]

    def values(self) -> torch.Tensor:
        return self._values

    def lengths(self) -> torch.Tensor:
        return self._lengths

    def weights_or_none(self) -> torch.Tensor | None:
        return self._weights


@pytest.mark.parametrize(("values_are_keys", "shift"), [(False, 1000), (True, 0)])
def test_keyed_jagged_tensor_is_mapped_by_name(values_are_keys: bool, shift: int) -> None:
    store = RecordingStore(local_store())
    embeddings = EmbeddingCollection(Features.of(user="sum", tags="mean"), store, dim=2)
    jagged = Jagged(torch.tensor([8, 1, 2, 3, 7, -1]), [1, 0, 2, 1, 1, 1])
    out = embeddings(jagged, values_are_keys=values_are_keys)
    pull = store.calls[-1][1]
    assert pull is not None
    assert pull.keys.keys_of(0).tolist() == [7 + shift, (2**64 - 1 + shift) % 2**64]
    assert pull.keys.keys_of(1).tolist() == [1 + shift, 2 + shift, 3 + shift]
    assert out["tags"].shape == (2, 2)


def test_keyed_jagged_tensor_of_floats_or_without_a_feature_is_refused() -> None:
    embeddings = EmbeddingCollection(Features.of(user="sum"), local_store())
    with pytest.raises(TypeError, match=r"expected integer ids .* got torch\.float32"):
        embeddings(Jagged(torch.zeros(6), [1, 0, 2, 1, 1, 1]))
    absent = EmbeddingCollection(Features.of(shop="sum"), local_store())
    with pytest.raises(FeatureMismatchError, match=r"missing \['shop'\]"):
        absent(Jagged(torch.zeros(6, dtype=torch.long), [1, 0, 2, 1, 1, 1]))


@pytest.mark.parametrize("optimizer", [SGD, Adagrad(lr=0.5)])
def test_one_step_equals_torch_embedding(optimizer: Sgd | Adagrad) -> None:
    store = local_store()
    embeddings = EmbeddingCollection(Features.of(tags="sum"), store, dim=3, optimizer=optimizer)
    table = torch.nn.Embedding(6, 3)
    table.weight.data = torch.from_numpy(weights(store, "tags", list(range(6)), "initial"))
    make: Callable[..., torch.optim.Optimizer] = (
        torch.optim.SGD
        if isinstance(optimizer, Sgd)
        else lambda parameters, lr: torch.optim.Adagrad(parameters, lr=lr, eps=1e-8)
    )
    peer, rows = make(table.parameters(), lr=optimizer.lr), embeddings.optimizer()
    lists = [[0, 1, 1], [5], [3, 0]]
    for _ in range(3):
        embeddings(bags({"tags": lists}))["tags"].square().sum().backward()
        rows.step()
        torch.stack([table(torch.tensor(bag)).sum(0) for bag in lists]).square().sum().backward()
        peer.step()
        peer.zero_grad()
    used = [0, 1, 3, 5]
    np.testing.assert_allclose(weights(store, "tags", used), table.weight.detach().numpy()[used], rtol=1e-5, atol=1e-7)


def test_layout_names_tables_group_after_group() -> None:
    features = Features.of(a="sum", b="sum", c="sum")
    narrow, wide = (ColumnBlock(dim=2),), (ColumnBlock(dim=5),)
    layout = RowLayout(
        features.categorical,
        {name: TableConfig(name=name, blocks=wide if name == "b" else narrow) for name in "abc"},
    )
    assert layout.tables == ("a", "c", "b")
    assert layout.table_of.tolist() == [0, 2, 1]
    assert [(group.first_table, group.table_count, group.width) for group in layout.groups] == [(0, 2, 2), (2, 1, 5)]


@pytest.mark.filterwarnings("ignore")  # of dynamo's own looking about
def test_a_compiled_module_with_the_collection_in_it_trains_its_rows() -> None:
    class Tower(torch.nn.Module):
        def __init__(self, embeddings: EmbeddingCollection) -> None:
            super().__init__()
            self.embeddings = embeddings

        def forward(self, batch: es.FeatureBatch) -> torch.Tensor:
            return self.embeddings(batch).values().sum(1) * 2

    store = local_store()
    embeddings = EmbeddingCollection(Features.of(user="sum"), store, dim=1, optimizer=SGD, initializer=Zeros())
    rows, tower = embeddings.optimizer(), torch.compile(Tower(embeddings), backend="eager")
    for index in range(2):
        tower(bags({"user": [[4], [9, 4]]}, id=BatchId(5, index))).sum().backward()
        rows.step()
    assert weights(store, "user", [4, 9]).tolist() == [[-8], [-4]]
