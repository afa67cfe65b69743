"""Models with inputs that came later: equal answers before they carry anything, columns that go with their features."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch

import embershard as es
from embershard.embedding.errors import CheckpointMismatchError
from embershard.embedding.table_group import TableKeys
from embershard.feature_map.feature_map_change import add_feature
from embershard.models.added_columns import AddedColumns
from embershard.models.config import (
    DeepFMConfig,
    DenseAdagrad,
    DenseAdam,
    DenseSgd,
    FactorizationMachineConfig,
    LogisticRegressionConfig,
    OptimizerConfig,
)
from embershard.models.errors import ModelSpecError
from embershard.models.model_factory import build_dense_optimizer, build_embeddings, build_model
from embershard.models.model_growth import FeatureChange, ModelColumns, grown_arrays
from embershard.models.trainer_state import dense_arrays, load_dense_arrays

FIELDS = 26
OPTIMIZER = OptimizerConfig()


def feature_map(fields: int = FIELDS) -> es.FeatureMap:
    names = [f"c{number}" for number in range(fields)]
    return es.FeatureMap([*(es.Categorical(name=name) for name in names), es.Numeric(name="n0")], label="label")


def grown_map(features: es.FeatureMap, count: int) -> es.FeatureMap:
    for number in range(count):
        features = add_feature(features, es.Categorical(name=f"later{number}"))
    return add_feature(features, es.Numeric(name="n1"))


def records(features: es.FeatureMap, size: int) -> pa.RecordBatch:
    random = np.random.default_rng(size)
    columns: dict[str, Any] = {
        name.name: random.integers(0, 50, size)
        if name.name.startswith(("c", "later"))
        else random.normal(size=size).astype(np.float32)
        for name in features.features
    }
    return pa.RecordBatch.from_pydict({**columns, "label": random.integers(0, 2, size).astype(np.float32)})


def with_rows(store: es.LocalStore, features: es.FeatureMap, dim: int, only: str) -> None:
    """Every value of the first features has a row of random weights."""
    for name in [f.name for f in features.categorical if f.name.startswith(only)]:
        keys = np.unique(features.encode_values(name, np.arange(50)))
        weights = np.random.default_rng(len(name)).normal(0, 0.3, len(keys) * dim).astype(np.float32)
        store.assign(TableKeys.of(name, keys), weights)


def logits_before_and_after(config: Any, later: int, size: int) -> list[Any]:
    """Of a batch, by a model of 26 fields and by the same one with so many more, which carry nothing yet."""
    features = feature_map()
    more = grown_map(features, later)
    grown = config.model_copy(update={"added": (tuple(f"later{n}" for n in range(later)), ("n1",))})
    logits = []
    old_model, new_model = build_model(config, features, 1), build_model(grown, more, 2)
    arrays = grown_arrays(
        dense_arrays(old_model, None),
        dense_arrays(new_model, None),
        ModelColumns.of(old_model, features),
        ModelColumns.of(new_model, more),
        FeatureChange(at_zero=frozenset(["n1"])),
    )
    load_dense_arrays(arrays, new_model, None)
    for chosen, its_map, model in ((config, features, old_model), (grown, more, new_model)):
        with es.LocalStore(tablet_bits=2) as store:
            embeddings = build_embeddings(chosen, OPTIMIZER, its_map, store, device="cpu")
            with_rows(store, its_map, embeddings.layout.configs[0].dim, "c")
            batch = its_map.encode(records(more, size))
            with torch.no_grad():  # in training mode: absent rows of added tables are zeros there too
                logits.append(model(embeddings(batch), torch.from_numpy(batch.dense)).numpy())
    return logits


@pytest.mark.parametrize("size", [1, 37, 1024])
@pytest.mark.parametrize("later", [1, 7])
@pytest.mark.parametrize(
    "config",
    [LogisticRegressionConfig(), FactorizationMachineConfig(dim=16), DeepFMConfig(dim=16, hidden=(64, 32))],
    ids=lambda config: config.kind,
)
def test_fields_of_zeros_change_no_bit_of_the_logits(config: Any, later: int, size: int) -> None:
    logits = logits_before_and_after(config, later, size)
    assert logits[0].std() > 0 or size == 1
    assert logits[0].tobytes() == logits[1].tobytes()


@pytest.mark.parametrize("config", [FactorizationMachineConfig(dim=16), DeepFMConfig(dim=16)], ids=lambda one: one.kind)
def test_sums_by_torch_operations_as_on_other_devices_agree_within_rounding(
    config: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("embershard.models.embedding_output.EmbeddingOutput._on_cpu", lambda output, place: False)
    logits = logits_before_and_after(config, 7, 300)
    np.testing.assert_allclose(logits[1], logits[0], rtol=1e-5, atol=1e-5)


def test_gradients_are_those_of_one_layer_over_all_columns() -> None:
    torch.manual_seed(0)
    added = AddedColumns(9, 3, [[7, 2], [], [4]])
    first = torch.nn.Linear(len(added.first), 3)
    assert (added.first, added.blocks) == ((0, 1, 3, 5, 6, 8), ((2, 7), (4,)))
    inputs = torch.randn(5, 9, requires_grad=True)
    upstream = torch.randn(5, 3)
    (added(first, inputs) * upstream).sum().backward()
    whole = torch.nn.Linear(9, 3)
    with torch.no_grad():
        whole.bias.copy_(first.bias)
        for columns, layer in zip((added.first, *added.blocks), (first, *added), strict=True):
            whole.weight[:, list(columns)] = layer.weight  # type: ignore[assignment]
    same = inputs.detach().clone().requires_grad_()
    (whole(same) * upstream).sum().backward()
    torch.testing.assert_close(inputs.grad, same.grad)
    for columns, layer in zip((added.first, *added.blocks), (first, *added), strict=True):
        torch.testing.assert_close(layer.weight.grad, whole.weight.grad[:, list(columns)])  # type: ignore[index]


def test_added_columns_work_under_autocast() -> None:
    added = AddedColumns(6, 3, [[5], [1, 2]])
    first, inputs = torch.nn.Linear(3, 3), torch.randn(4, 6)
    with torch.autocast("cpu", torch.bfloat16):
        found = added(first, inputs)
    found.float().sum().backward()
    assert found.dtype == torch.bfloat16
    torch.testing.assert_close(found.float(), added(first, inputs), rtol=0.05, atol=0.05)
    assert all(layer.weight.grad is not None for layer in (first, *added))


@pytest.mark.parametrize("optimizer", [DenseAdam(), DenseAdagrad(), DenseSgd(momentum=0.9)], ids=lambda one: one.kind)
def test_every_dense_optimizer_goes_on_with_its_state_and_begins_with_the_new_columns(optimizer: Any) -> None:
    features = feature_map(3)
    more = grown_map(features, 1)
    config = DeepFMConfig(dim=4, hidden=(8,))
    old_model = build_model(config, features, 1)
    old_optimizer = build_dense_optimizer(optimizer, old_model)
    new_model = build_model(config.model_copy(update={"added": (("later0", "n1"),)}), more, 2)
    new_optimizer = build_dense_optimizer(optimizer, new_model)
    assert old_optimizer is not None
    assert new_optimizer is not None
    for parameter in old_model.parameters():
        parameter.grad = torch.randn_like(parameter)
    old_optimizer.step()
    arrays = grown_arrays(
        dense_arrays(old_model, old_optimizer),
        dense_arrays(new_model, new_optimizer),
        ModelColumns.of(old_model, features),
        ModelColumns.of(new_model, more),
        FeatureChange(),
    )
    load_dense_arrays(arrays, new_model, new_optimizer)
    old, new = dict(old_model.named_parameters()), dict(new_model.named_parameters())
    for parameter in new.values():
        parameter.grad = torch.zeros_like(parameter)
    gradients = {name: torch.randn_like(parameter) for name, parameter in old.items()}
    for name, gradient in gradients.items():
        old[name].grad, new[name].grad = gradient, gradient.clone()
    new["added.0.weight"].grad = torch.ones_like(new["added.0.weight"])
    before = new["added.0.weight"].detach().clone()
    old_optimizer.step()
    new_optimizer.step()
    for name, parameter in old.items():
        assert torch.equal(parameter, new[name]), name
    assert (new["added.0.weight"] < before).all()


def test_columns_that_start_anew_have_neither_weights_nor_optimizer_state_of_before() -> None:
    features = feature_map(3)
    model = build_model(DeepFMConfig(dim=4, hidden=(8,)), features, 1)
    optimizer = build_dense_optimizer(DenseAdam(), model)
    assert optimizer is not None
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    saved = dense_arrays(model, optimizer)
    again = build_model(DeepFMConfig(dim=4, hidden=(8,)), features, 2)
    columns = ModelColumns.of(model, features)
    fresh = dense_arrays(again, build_dense_optimizer(DenseAdam(), again))
    grown = grown_arrays(saved, fresh, columns, columns, FeatureChange(anew=frozenset(["c1"])))
    assert grown.keys() == saved.keys()
    place = columns.parameters.index("mlp.0.weight")
    for name, expected in (("model/mlp.0.weight", fresh["model/mlp.0.weight"]), (f"optimizer/{place}/exp_avg", None)):
        np.testing.assert_array_equal(grown[name][:, 4:8], 0 if expected is None else expected[:, 4:8])
        np.testing.assert_array_equal(np.delete(grown[name], range(4, 8), 1), np.delete(saved[name], range(4, 8), 1))


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (DeepFMConfig(dim=4, hidden=(8, 8)), "expected dense parameters"),
        (DeepFMConfig(dim=4, hidden=(9,)), r"expected parameter 'mlp.0.bias' of float32 \(8,\)"),
        (DeepFMConfig(dim=5, hidden=(8,)), "expected 4 columns of feature 'c0'"),
        (FactorizationMachineConfig(dim=4), "expected dense parameters"),
    ],
)
def test_a_model_that_differs_in_more_than_features_is_refused(config: Any, message: str) -> None:
    features = feature_map(3)
    model, other = build_model(DeepFMConfig(dim=4, hidden=(8,)), features), build_model(config, features)
    arrays, fresh = dense_arrays(model, None), dense_arrays(other, None)
    with pytest.raises(CheckpointMismatchError, match=message):
        grown_arrays(arrays, fresh, ModelColumns.of(model, features), ModelColumns.of(other, features), FeatureChange())


@pytest.mark.parametrize(("added", "message"), [((("c9",),), "got 'c9'"), ((("c1",), ("c1",)), "got 'c1' twice")])
def test_added_names_that_cannot_be_are_refused(added: Any, message: str) -> None:
    with pytest.raises(ModelSpecError, match=message):
        build_model(LogisticRegressionConfig(added=added), feature_map(3))


def test_the_documents_model_of_ones_own_says_its_columns() -> None:
    page = Path(__file__).parents[2] / "docs" / "feature_growth.md"
    found = re.search(r"```python\n(.*?)```", page.read_text(encoding="utf-8"), re.DOTALL)
    assert found is not None
    names: dict[str, Any] = {"nn": torch.nn}
    exec(compile(found.group(1), str(page), "exec"), names)
    columns = ModelColumns.of(names["Net"](feature_map(2)), feature_map(2))
    assert columns.columns["layer.weight"][14:18] == (("c0", 14), ("c0", 15), ("c1", 0), ("c1", 1))
