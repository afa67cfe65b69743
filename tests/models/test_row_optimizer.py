"""RowOptimizer: schedulers, clipping and GradScaler see the rows; each pulled batch is pushed once or never."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from model_fakes import CLICK_FEATURES, Features, RecordingStore, bags, click_batches, local_store

from embershard.embedding.table_config import ColumnBlock, Sgd, Zeros
from embershard.models.embedding_collection import EmbeddingCollection


def one_key(lr: float = 1.0) -> tuple[RecordingStore, EmbeddingCollection]:
    store = RecordingStore(local_store())
    embeddings = EmbeddingCollection(
        Features.of(user="sum"), store, dim=1, optimizer=Sgd(lr=lr), initializer=Zeros(), device="cpu"
    )
    return store, embeddings


def pushes(store: RecordingStore) -> list[float]:
    return [float(push.gradients[0]) for push, _ in store.calls if push is not None]


def test_is_a_torch_optimizer_and_the_same_object_each_time() -> None:
    _, embeddings = one_key()
    assert isinstance(embeddings.optimizer(), torch.optim.Optimizer)
    assert embeddings.optimizer() is embeddings.optimizer()


def test_scheduler_scales_the_learning_rate() -> None:
    store, embeddings = one_key(lr=0.5)
    rows = embeddings.optimizer()
    assert rows.param_groups[0]["lr"] == 0.5
    schedule = torch.optim.lr_scheduler.StepLR(rows, step_size=1, gamma=0.1)
    for _ in range(3):
        embeddings(bags({"user": [[1]]})).values().sum().backward()
        rows.step()
        schedule.step()
    assert [push.lr_scale for push, _ in store.calls if push is not None] == pytest.approx([1, 0.1, 0.01])


def test_blocks_of_several_rates_start_at_one() -> None:
    blocks = [
        ColumnBlock(name="a", dim=1, optimizer=Sgd(lr=0.1)),
        ColumnBlock(name="b", dim=1, optimizer=Sgd(lr=0.2)),
    ]
    rows = EmbeddingCollection(CLICK_FEATURES, local_store(), blocks=blocks).optimizer()
    assert rows.param_groups[0]["lr"] == 1.0
    assert rows.lr_scale == 1.0


def test_clip_grad_norm_counts_merged_rows_b17() -> None:
    store, embeddings = one_key()
    rows = embeddings.optimizer()
    out = embeddings(bags({"user": [[5], [5]]})).values()
    (out * torch.tensor([[3.0], [1.0]])).sum().backward()
    norm = torch.nn.utils.clip_grad_norm_(rows.parameters(), 2.0)
    assert norm == 4
    rows.step()
    assert pushes(store) == pytest.approx([2.0], rel=1e-5)


@pytest.mark.parametrize("scale", [1024.0, float("inf")])
def test_grad_scaler_unscales_and_skips(scale: float) -> None:
    store, embeddings = one_key()
    rows = embeddings.optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)
    loss = embeddings(bags({"user": [[5]]})).values().sum() * (1.0 if scale == 1024.0 else float("inf"))
    scaler.scale(loss).backward()
    scaler.step(rows)
    scaler.update()
    rows.zero_grad()
    assert pushes(store) == ([1.0] if scale == 1024.0 else [])
    embeddings(bags({"user": [[5]]})).values().sum().backward()
    rows.step()  # the skipped batch is not pushed later
    assert len(pushes(store)) == (2 if scale == 1024.0 else 1)


def test_zero_grad_before_backward_keeps_the_batch() -> None:
    store, embeddings = one_key()
    rows = embeddings.optimizer()
    out = embeddings(bags({"user": [[5]]}))
    rows.zero_grad()
    out.values().sum().backward()
    rows.step()
    assert pushes(store) == [1.0]


def test_zero_grad_after_backward_drops_the_batch() -> None:
    store, embeddings = one_key()
    rows = embeddings.optimizer()
    embeddings(bags({"user": [[5]]})).values().sum().backward()
    rows.zero_grad()
    rows.step()
    assert pushes(store) == []


def test_two_steps_push_once() -> None:
    store, embeddings = one_key()
    rows = embeddings.optimizer()
    embeddings(bags({"user": [[5]]})).values().sum().backward()
    rows.step()
    rows.step()
    assert pushes(store) == [1.0]
    assert rows.steps == 1


def test_two_batches_before_one_step_are_both_pushed() -> None:
    store, embeddings = one_key()
    rows = embeddings.optimizer()
    loss = embeddings(bags({"user": [[5]]})).values().sum() + 2 * embeddings(bags({"user": [[6]]})).values().sum()
    loss.backward()
    assert len(rows.parameters()) == 2
    rows.step()
    assert pushes(store) == [1.0, 2.0]


def test_forward_under_no_grad_is_not_waited_for() -> None:
    _, embeddings = one_key()
    rows = embeddings.optimizer()
    with torch.no_grad():
        embeddings(bags({"user": [[5]]})).values()
    assert rows.parameters() == []


def test_closure_is_called_with_gradients_on() -> None:
    store, embeddings = one_key()
    rows = embeddings.optimizer()

    def closure() -> float:
        loss = embeddings(bags({"user": [[5]]})).values().sum()
        loss.backward()
        return loss.item()

    with torch.no_grad():
        assert rows.step(closure) == 0.0
    assert pushes(store) == [1.0]


def test_a_scheduler_goes_on_after_a_state_dict_as_over_torchs_optimizers() -> None:
    _, embeddings = one_key(lr=0.5)
    rows = embeddings.optimizer()
    torch.optim.lr_scheduler.StepLR(rows, step_size=1, gamma=0.1)
    _, again = one_key(lr=0.5)
    again.optimizer().load_state_dict(rows.state_dict())
    torch.optim.lr_scheduler.StepLR(again.optimizer(), step_size=1, gamma=0.1, last_epoch=3)
    assert again.optimizer().param_groups[0]["initial_lr"] == 0.5


def test_other_parameters_are_refused() -> None:
    _, embeddings = one_key()
    with pytest.raises(ValueError, match="expected no parameters beside the rows"):
        embeddings.optimizer().add_param_group({"params": [torch.zeros(1, requires_grad=True)]})


def test_state_dict_goes_on() -> None:
    _, embeddings = one_key(lr=0.5)
    rows = embeddings.optimizer()
    embeddings(bags({"user": [[5]]})).values().sum().backward()
    rows.step()
    rows.param_groups[0]["lr"] = 0.25
    store, other = one_key(lr=0.5)
    other.optimizer().load_state_dict(rows.state_dict())
    other(bags({"user": [[5]]})).values().sum().backward()
    other.optimizer().step()
    push = store.calls[-1][0]
    assert push is not None
    assert (push.step, push.lr_scale) == (2, 0.5)


def test_part_that_backward_did_not_reach_sends_zeros() -> None:
    store, embeddings = RecordingStore(local_store()), None
    embeddings = EmbeddingCollection(CLICK_FEATURES, store, dim=2)
    rows = embeddings.optimizer()
    batch = click_batches(1)[0]
    embeddings(batch)["user"].sum().backward()
    rows.step()
    push = store.calls[-1][0]
    assert push is not None
    users = int(push.keys.splits[1]) * 2
    assert (push.gradients[:users] > 0).all()
    assert np.count_nonzero(push.gradients[users:]) == 0
