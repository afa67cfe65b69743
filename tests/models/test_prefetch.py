"""prefetch: the lane rule, equal bits on every run, and loops that end in every way."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from itertools import islice

import numpy as np
import pytest
import torch
from model_fakes import CLICK_FEATURES, Features, RecordingStore, bags, click_batches, local_store

from embershard.datasets.work_unit import BatchId
from embershard.embedding.store import Exchange, Pull, Push, PushToken
from embershard.embedding.table_config import Sgd, Zeros
from embershard.embedding.table_group import TableKeys
from embershard.feature_map.batch import FeatureBatch
from embershard.models.embedding_collection import EmbeddingCollection
from embershard.models.prefetch_pipeline import PREPARED_AHEAD, prefetch
from embershard.models.thread_priority import _can_stop_resting
from embershard.ps_server import LocalStore, StalenessLimit

USER = Features.of(user="sum")


def numbered(count: int) -> Iterator[FeatureBatch]:
    """Batch i holds key 100 + i, and key 7 that all share."""
    for index in range(count):
        yield bags({"user": [[100 + index], [7]]}, id=BatchId(1, index))


def collection(store: RecordingStore | None = None) -> tuple[RecordingStore, EmbeddingCollection]:
    store = store or RecordingStore(local_store())
    return store, EmbeddingCollection(USER, store, dim=1, optimizer=Sgd(lr=1.0), initializer=Zeros())


@pytest.fixture(autouse=True)
def _no_thread_is_left() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    left = [thread for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    assert left == []


def train(batches: Iterable[FeatureBatch], embeddings: EmbeddingCollection, depth: int = 1) -> Iterator[int]:
    """The index of each batch, after its push."""
    rows = embeddings.optimizer()
    for index, (_, inputs) in enumerate(prefetch(batches, embeddings, depth, synchronous_steps=0)):
        inputs.values().sum().backward()
        rows.step()
        yield index


def train_all(batches: Iterable[FeatureBatch], embeddings: EmbeddingCollection, depth: int, seen: list[int]) -> None:
    """Train on, noting the index of each batch in `seen`."""
    seen.extend(train(batches, embeddings, depth))


def weights_of(store: RecordingStore) -> dict[str, np.ndarray]:
    snapshots = [store.snapshot(tablet) for tablet in range(1 << store.tablet_bits)]  # type: ignore[operator]
    return {
        table: np.concatenate([snapshot.tables[table].weights for snapshot in snapshots])
        for table in snapshots[0].tables
    }


@pytest.mark.parametrize("depth", [0, 1, 2, 3])
def test_pull_of_batch_i_sees_pushes_up_to_i_minus_1_minus_depth(depth: int) -> None:
    store, embeddings = collection()
    rows = embeddings.optimizer()
    seen = []
    for _, inputs in prefetch(numbered(6), embeddings, depth, synchronous_steps=0):
        out = inputs.values()
        seen.append(-int(out[1]))  # key 7 was lowered by 1 by each push it sees
        out.sum().backward()
        rows.step()
        rows.zero_grad()
    assert seen == [max(0, i - depth) for i in range(6)]
    pulls = [100 + i for i in range(6)] + [None] * (depth + 1)
    pushes = [None] * (depth + 1) + list(range(6))
    assert store.lane == [call for call in zip(pushes, pulls, strict=True) if call != (None, None)]
    assert store.stats()["user"].rows == 7  # type: ignore[operator]


@pytest.mark.parametrize("depth", [1, 2])
@pytest.mark.parametrize("loops", [(8,), (1, 7), (4, 4)])
def test_first_steps_of_all_loops_together_see_every_push_before_them(depth: int, loops: tuple[int, ...]) -> None:
    _, embeddings = collection()
    rows = embeddings.optimizer()
    seen = []
    for start, length in zip(np.cumsum((0, *loops)).tolist(), loops, strict=False):
        batches = islice(numbered(8), start, start + length)
        for _, inputs in prefetch(batches, embeddings, depth, synchronous_steps=3):
            seen.append(-int(inputs.values()[1]))
            inputs.values().sum().backward()
            rows.step()
    starts = np.repeat(np.cumsum((0, *loops))[:-1], loops)
    # The pipeline fills behind the third step, or where a loop starts after it.
    assert seen == [i if i < 3 else max(3, start, i - depth) for i, start in enumerate(starts.tolist())]


def test_loop_shorter_than_the_synchronous_steps_ends() -> None:
    store, embeddings = collection()
    assert list(train(numbered(2), embeddings, depth=2)) == [0, 1]
    rows, seen = embeddings.optimizer(), []
    for _, inputs in prefetch(islice(numbered(5), 2, 5), embeddings, 2, synchronous_steps=100):
        seen.append(-int(inputs.values()[1]))
        inputs.values().sum().backward()
        rows.step()
    assert seen == [2, 3, 4]
    assert store.stats()["user"].rows == 6  # type: ignore[operator]


def test_evaluation_is_pipelined_from_its_first_batch() -> None:
    third = threading.Event()

    class WaitedFor(RecordingStore):
        def exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
            answer = super().exchange(push, pull)
            if len(self.calls) == 3:
                third.set()
            return answer

    _, embeddings = collection(WaitedFor(local_store()))
    embeddings.eval()
    loop = prefetch(numbered(5), embeddings, depth=2, synchronous_steps=100)
    next(loop)
    assert third.wait(10)
    loop.close()


@pytest.mark.parametrize("depth", [0, 2])
def test_step_not_called_is_a_skipped_push(depth: int) -> None:
    store, embeddings = collection()
    rows = embeddings.optimizer()

    def step_every_second() -> None:
        for batch, inputs in prefetch(numbered(5), embeddings, depth, synchronous_steps=0):
            inputs.values().sum().backward()
            assert batch.id is not None
            if batch.id.index % 2 == 0:
                rows.step()

    with pytest.warns(UserWarning, match="gradients of a batch were given up") as said:
        step_every_second()
    assert len(said) == 1
    assert [push for push, _ in store.lane if push is not None] == [0, 2, 4]
    assert rows.parameters() == []


def test_a_step_skipped_for_gradients_that_are_not_finite_is_no_warning() -> None:
    store, embeddings = collection()
    rows = embeddings.optimizer()
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    for batch, inputs in prefetch(numbered(3), embeddings, 0, synchronous_steps=0):
        assert batch.id is not None
        factor = float("inf") if batch.id.index == 1 else 1.0
        scaler.scale(inputs.values().sum() * factor).backward()
        scaler.step(rows)
        scaler.update()
    assert [push for push, _ in store.lane if push is not None] == [0, 2]


class SlowPushes(RecordingStore):
    """Whose pushes take so long that what does not wait for them comes before."""

    def exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
        if push is not None:
            time.sleep(0.05)
        return super().exchange(push, pull)


@pytest.mark.parametrize("depth", [0, 1])
def test_a_pull_inside_the_loop_sees_all_pushes_made_before_it(depth: int) -> None:
    _, embeddings = collection(SlowPushes(local_store()))
    rows = embeddings.optimizer()
    probe = bags({"user": [[7]]})
    seen, evaluated, stored = [], [], []
    for _, inputs in prefetch(numbered(4), embeddings, depth, synchronous_steps=0):
        inputs.values().sum().backward()
        rows.step()
        with torch.no_grad():
            seen.append(float(embeddings(probe).values()))
        embeddings.eval()
        evaluated += [float(out.values()) for _, out in prefetch([probe], embeddings)]
        embeddings.train()
        embeddings.settle()
        found = embeddings.store.exchange(None, Pull(TableKeys.of("user", np.array([7], np.uint64)))).rows
        assert found is not None
        stored.append(float(found.values[0]))
    assert seen == evaluated == stored == [-1, -2, -3, -4]


def held_up(
    before: Iterable[FeatureBatch], until: threading.Event, after: Iterable[FeatureBatch]
) -> Iterator[FeatureBatch]:
    """A source that gives what comes `after` when the loop says so."""
    yield from before
    assert until.wait(30)
    yield from after


def test_waiting_for_pushes_does_not_wait_for_the_source() -> None:
    """The batch that the push would be called with comes when the loop itself has looked at the store."""
    _, embeddings = collection()
    rows = embeddings.optimizer()
    looked = threading.Event()
    batches = held_up(numbered(2), looked, [bags({"user": [[102], [7]]}, id=BatchId(1, 2))])
    seen = []
    for _, inputs in prefetch(batches, embeddings, 0, synchronous_steps=0):
        inputs.values().sum().backward()
        rows.step()
        with torch.no_grad():
            seen.append(float(embeddings(bags({"user": [[7]]})).values()))
        if len(seen) == 2:
            looked.set()
    assert seen == [-1, -2, -3]


def test_waiting_for_a_push_that_is_lost_raises_what_the_store_raised_and_only_there() -> None:
    store, embeddings = collection()
    store.fail_at = 1
    rows = embeddings.optimizer()
    loop = prefetch(numbered(3), embeddings, 0, synchronous_steps=0)
    _, inputs = next(loop)
    inputs.values().sum().backward()
    rows.step()
    for _ in range(2):
        with pytest.raises(ConnectionError, match="call 1 failed"):
            embeddings.settle()
    with pytest.raises(ConnectionError, match="call 1 failed"):
        next(loop)
    store.fail_at = None
    embeddings.settle()
    embeddings(bags({"user": [[7]]}))


@pytest.mark.parametrize("depth", [1, 2, 3])
def test_where_no_push_was_made_nothing_is_waited_for(depth: int) -> None:
    _, embeddings = collection()
    embeddings.eval()
    looked = threading.Event()
    count = 0
    for _ in prefetch(held_up(numbered(1), looked, numbered(1)), embeddings, depth, synchronous_steps=0):
        embeddings(bags({"user": [[7]]}))
        looked.set()
        count += 1
    assert count == 2


def test_a_wait_that_the_click_log_holds_up_has_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """At depth 1 the push of batch 0 comes after the pull of batch 1, which comes when batch 0 was looked at."""
    monkeypatch.setattr("embershard.models.prefetch_pipeline.SETTLE_SECONDS", 0.2)
    _, embeddings = collection()
    rows = embeddings.optimizer()
    looked = threading.Event()
    loop = prefetch(held_up(numbered(1), looked, []), embeddings, 1, synchronous_steps=0)
    _, inputs = next(loop)
    inputs.values().sum().backward()
    rows.step()
    with pytest.raises(TimeoutError, match=r"within 0 s, got some that wait for the click log .* at depth 0 none are"):
        embeddings.settle()
    looked.set()
    assert list(loop) == []


@pytest.mark.parametrize("depth", [0, 1])
def test_the_loops_own_threads_do_not_wait_for_themselves(depth: int) -> None:
    _, embeddings = collection()
    rows = embeddings.optimizer()

    def source() -> Iterator[FeatureBatch]:
        for batch in numbered(4):
            with torch.no_grad():
                embeddings(bags({"user": [[7]]}))
            yield batch

    count = 0
    loop = prefetch(source(), embeddings, depth, synchronous_steps=0, before_push=lambda _: embeddings.settle())
    for _, inputs in loop:
        inputs.values().sum().backward()
        rows.step()
        count += 1
    assert count == 4


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_a_unit_is_complete_when_its_pushes_are_in_the_store(depth: int) -> None:
    _, embeddings = collection(SlowPushes(local_store()))
    rows = embeddings.optimizer()
    units = [bags({"user": [[100 + unit], [7]]}, id=BatchId(unit, 0)) for unit in range(5)]
    for batch, inputs in prefetch(units, embeddings, depth, synchronous_steps=0):
        inputs.values().sum().backward()
        rows.step()
        assert batch.id is not None
        embeddings.complete_unit(batch.id.unit)
    assert embeddings.counts.repeated == 0
    assert embeddings.counts.applied == 10


@pytest.mark.parametrize("leave", [RuntimeError, KeyboardInterrupt])
def test_a_loop_left_between_backward_and_step_is_no_warning(leave: type[BaseException]) -> None:
    _, embeddings = collection()
    embeddings.optimizer()
    loop = prefetch(numbered(3), embeddings, 0, synchronous_steps=0)
    _, inputs = next(loop)
    inputs.values().sum().backward()
    with pytest.raises(leave):
        loop.throw(leave())  # type: ignore[attr-defined]


def test_what_is_no_batch_is_an_error_and_not_the_end() -> None:
    _, embeddings = collection()
    with pytest.raises(TypeError, match="expected a FeatureBatch, as a feature map encodes them, got NoneType"):
        list(prefetch([*numbered(1), None, *numbered(1)], embeddings))  # type: ignore[list-item]


@pytest.mark.parametrize("zero_first", [True, False])
def test_zero_grad_may_come_first_or_last(zero_first: bool) -> None:
    store, embeddings = collection()
    rows = embeddings.optimizer()
    for _, inputs in prefetch(numbered(3), embeddings, synchronous_steps=0):
        if zero_first:
            rows.zero_grad()
        inputs.values().sum().backward()
        rows.step()
        if not zero_first:
            rows.zero_grad()
    assert [push for push, _ in store.lane if push is not None] == [0, 1, 2]


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_equal_depth_gives_equal_bits(depth: int) -> None:
    results = []
    for _ in range(2):
        store = RecordingStore(local_store())
        embeddings = EmbeddingCollection(CLICK_FEATURES, store, dim=4)
        rows = embeddings.optimizer()
        for batch, inputs in prefetch(click_batches(8), embeddings, depth, synchronous_steps=3):
            logit = inputs.values().sum(1)
            torch.nn.functional.binary_cross_entropy_with_logits(logit, batch.label).backward()
            rows.step()
        results.append(weights_of(store))
    for table, first in results[0].items():
        np.testing.assert_array_equal(first, results[1][table])


def test_depth_0_equals_the_synchronous_form() -> None:
    results = []
    for form in ("prefetch", "synchronous"):
        store = RecordingStore(local_store())
        embeddings = EmbeddingCollection(CLICK_FEATURES, store, dim=4)
        rows = embeddings.optimizer()
        batches = click_batches(8)
        if form == "prefetch":
            pairs = ((batch.label, inputs) for batch, inputs in prefetch(batches, embeddings, 0))
        else:
            pairs = ((torch.from_numpy(batch.label), embeddings(batch)) for batch in batches)
        for label, inputs in pairs:
            torch.nn.functional.binary_cross_entropy_with_logits(inputs.values().sum(1), label).backward()
            rows.step()
        results.append(weights_of(store))
    for table, first in results[0].items():
        np.testing.assert_array_equal(first, results[1][table])


def test_break_carries_out_the_pushes_made_and_closes_the_source() -> None:
    store, embeddings = collection()
    rows = embeddings.optimizer()
    closed = threading.Event()

    def source() -> Iterator[FeatureBatch]:
        try:
            yield from numbered(1_000_000)
        finally:
            closed.set()

    for batch, inputs in prefetch(source(), embeddings, depth=2, synchronous_steps=0):
        inputs.values().sum().backward()
        rows.step()
        assert batch.id is not None
        if batch.id.index == 3:
            break
    assert closed.wait(5)
    assert [push for push, _ in store.lane if push is not None] == [0, 1, 2, 3]
    assert rows.parameters() == []


def test_error_in_the_loop_body_ends_the_threads() -> None:
    _, embeddings = collection()

    def fail() -> None:
        for _ in prefetch(numbered(100), embeddings, synchronous_steps=0):
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()


@pytest.mark.parametrize("depth", [0, 1, 2])
def test_error_of_the_source_comes_in_its_place(depth: int) -> None:
    store, embeddings = collection()

    def source() -> Iterator[FeatureBatch]:
        yield from numbered(3)
        raise OSError("file 4 is gone")

    seen: list[int] = []
    with pytest.raises(OSError, match="file 4 is gone"):
        train_all(source(), embeddings, depth, seen)
    assert seen == [0, 1, 2]
    assert [push for push, _ in store.lane if push is not None] == [0, 1, 2]


@pytest.mark.parametrize("fail_at", [0, 1, 3, 7])
def test_error_of_the_store_comes_out_and_no_call_follows(fail_at: int) -> None:
    store, embeddings = collection()
    store.fail_at = fail_at
    seen: list[int] = []
    with pytest.raises(ConnectionError, match=f"call {fail_at} failed"):
        train_all(numbered(6), embeddings, 1, seen)
    assert len(seen) == min(fail_at, 6)
    assert len(store.calls) == fail_at


def test_push_lost_behind_a_break_is_raised_on_close() -> None:
    store, embeddings = collection()
    rows = embeddings.optimizer()
    loop = prefetch(numbered(6), embeddings, depth=1, synchronous_steps=0)
    _, inputs = next(loop)
    store.fail_at = 2
    inputs.values().sum().backward()
    rows.step()
    with pytest.raises(ConnectionError, match="call 2 failed"):
        loop.close()  # type: ignore[attr-defined]


def test_error_of_a_batch_that_was_never_asked_for_is_not_raised() -> None:
    _, embeddings = collection()

    def source() -> Iterator[FeatureBatch]:
        yield from numbered(1)
        raise OSError("unread")

    loop = prefetch(source(), embeddings, depth=1, synchronous_steps=0)
    next(loop)
    loop.close()  # type: ignore[attr-defined]


def test_evaluation_pulls_unseen_and_pushes_nothing() -> None:
    store, embeddings = collection()
    embeddings.eval()
    total = 0
    for batch, inputs in prefetch(numbered(4), embeddings, depth=2):
        total += len(batch)
        assert not inputs.values().requires_grad
    assert total == 8
    assert all(push is None and pull is not None and pull.absent == "unseen" for push, pull in store.calls)


def test_empty_source_gives_no_batch() -> None:
    _, embeddings = collection()
    assert list(prefetch([], embeddings, depth=2)) == []


def test_wrong_features_are_refused_in_the_loop() -> None:
    _, embeddings = collection()
    with pytest.raises(ValueError, match="expected a batch with features"):
        next(prefetch([bags({"item": [[1]]})], embeddings))
    with pytest.raises(ValueError, match="depth >= 0, got -1"):
        prefetch([], embeddings, depth=-1)
    with pytest.raises(ValueError, match="synchronous_steps >= 0, got -1"):
        prefetch([], embeddings, synchronous_steps=-1)


class Closing:
    """A source whose `close` fails."""

    def __init__(self, batches: Iterator[FeatureBatch]) -> None:
        self._batches = batches

    def __iter__(self) -> Iterator[FeatureBatch]:
        return self

    def __next__(self) -> FeatureBatch:
        return next(self._batches)

    def close(self) -> None:
        raise OSError("not closed")


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_source_that_cannot_be_closed_ends_the_loop_with_its_error() -> None:
    _, embeddings = collection()
    seen: list[int] = []
    failures: list[BaseException] = []

    def work() -> None:
        try:
            train_all(Closing(numbered(3)), embeddings, 1, seen)
        except OSError as error:
            failures.append(error)

    loop = threading.Thread(target=work, daemon=True)
    loop.start()
    loop.join(10)
    assert not loop.is_alive()
    assert seen == [0, 1, 2]
    assert str(failures[0]) == "not closed"


def test_a_loop_that_is_never_started_starts_no_thread() -> None:
    _, embeddings = collection()
    prefetch(numbered(3), embeddings)


@pytest.mark.skipif(sys.platform != "linux", reason="a thread has a priority of its own on Linux only")
def test_the_reader_rests_while_batches_wait_and_not_while_the_loop_waits_for_it() -> None:
    if not _can_stop_resting():
        pytest.skip("this process may not leave SCHED_IDLE again")
    _, embeddings = collection()
    readers: list[int] = []
    policies: list[int] = []
    slow, waiting = threading.Event(), threading.Event()

    def source() -> Iterator[FeatureBatch]:
        readers.append(threading.get_native_id())
        for index, batch in enumerate(numbered(20)):
            policies.append(os.sched_getscheduler(0))
            if index == 8:
                waiting.set()
                assert slow.wait(30)
            yield batch

    loop = prefetch(source(), embeddings, 0, synchronous_steps=0)
    deadline = time.monotonic() + 30
    for taken in (1, 2):
        next(loop)
        while len(policies) < taken + PREPARED_AHEAD and time.monotonic() < deadline:
            time.sleep(0.001)  # the reader goes as far ahead as it may
    assert policies[0] == os.SCHED_OTHER
    # The first batches may come before the lane's thread knows that it waits no more.
    assert policies[-1] == os.SCHED_IDLE
    ended = threading.Thread(target=lambda: list(loop))
    ended.start()
    assert waiting.wait(30)
    while os.sched_getscheduler(readers[0]) != os.SCHED_OTHER and time.monotonic() < deadline:
        time.sleep(0.001)
    assert os.sched_getscheduler(readers[0]) == os.SCHED_OTHER
    slow.set()
    ended.join(30)
    assert not ended.is_alive()
    assert len(policies) == 20


class BusyStore(RecordingStore):
    """Another worker pushes to key 7 each time before the pushes of the batches named in `before` arrive."""

    def __init__(self, before: set[int], max_staleness: int) -> None:
        limit = StalenessLimit(max_staleness, staleness_lr=1.0)
        super().__init__(LocalStore(2, staleness=limit))
        self._before = before
        self.foreign = 0

    def exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
        if push is not None and push.token is not None and push.token.batch in self._before and not push.recomputed:
            for _ in range(5):
                ones = np.ones(1, np.float32)
                keys = TableKeys.of("user", [7])
                other = Push(PushToken(99, 1, self.foreign), keys, ones, ones.astype(np.uint32), 1, 1, 0)
                self._store.exchange(other, None)
                self.foreign += 1
        return super().exchange(push, pull)


@pytest.mark.parametrize("depth", [0, 1, 2])
@pytest.mark.parametrize("before", [{1}, {0, 3}, {5}, {1, 2, 3, 4, 5}])
def test_stale_batch_comes_again_and_each_is_applied_once(depth: int, before: set[int]) -> None:
    store = BusyStore(before, max_staleness=depth + 1)
    _, embeddings = collection(store)
    rows = embeddings.optimizer()
    trained = []
    for batch, inputs in prefetch(numbered(6), embeddings, depth, synchronous_steps=0):
        assert batch.id is not None
        trained.append(batch.id.index)
        inputs.values().sum().backward()
        rows.step()
    assert sorted(set(trained)) == list(range(6))
    assert len(trained) == 6 + embeddings.counts.stale
    assert embeddings.counts.stale >= len(before)
    pull = Pull(TableKeys.of("user", [7, *range(100, 106)]))
    values = store.exchange(None, pull).rows
    assert values is not None
    # Key 7: once for each batch and foreign push; the batches' own keys once each.
    assert values.values.tolist() == [-6.0 - store.foreign] + [-1.0] * 6


@pytest.mark.parametrize("training", [True, False])
def test_pushes_are_prepared_ahead_where_there_will_be_some(training: bool) -> None:
    store = RecordingStore(LocalStore(2))
    _, embeddings = collection(store)
    embeddings.train(training)
    rows = embeddings.optimizer()
    for _, inputs in prefetch(numbered(6), embeddings, 1):
        if training:
            inputs.values().sum().backward()
            rows.step()
    pushes = [push for push, _ in store.calls if push is not None]
    assert len(pushes) == (6 if training else 0)
    assert all(push.prepared is not None for push in pushes)


def test_stale_batch_that_is_given_up_ends_the_loop_all_the_same() -> None:
    store = BusyStore({5}, max_staleness=1)
    _, embeddings = collection(store)
    rows = embeddings.optimizer()
    seen = 0
    for _, inputs in prefetch(numbered(6), embeddings, 0):
        seen += 1
        if seen <= 6:
            inputs.values().sum().backward()
            rows.step()
    assert seen == 7
