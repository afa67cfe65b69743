"""prefetch: batches with their embeddings, read, de-duplicated and pulled ahead of the step."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import Empty, SimpleQueue
from typing import Any

from ..datasets.argument_checks import whole_number
from ..embedding.store import Exchange, Push
from ..feature_map.batch import FeatureBatch
from .config import SYNCHRONOUS_STEPS
from .embedding_collection import EmbeddingCollection
from .embedding_output import EmbeddingOutput
from .pulled_rows import KeyedBatch, PulledRows
from .tensor_batch import TensorBatch
from .thread_priority import YieldingThread

PREPARED_AHEAD = 6
"""De-duplicated batches that wait for their pull; enough to even out a reader that decodes many batches at a time."""

RESTING_AHEAD = 2
"""So many batches waiting let the reader leave all busy cores to the step."""

SETTLE_SECONDS = 300.0
"""How long a wait for pushes may take; a lane that the click log does not hold up has its deadlines."""

READER_PATIENCE_SECONDS = 10.0
"""How long leaving a loop waits for a reader that is inside its source."""


def prefetch(
    batches: Iterable[FeatureBatch],
    embeddings: EmbeddingCollection,
    depth: int = 1,
    *,
    synchronous_steps: int = SYNCHRONOUS_STEPS,
    before_push: Callable[[Push], object] | None = None,
) -> Iterator[tuple[TensorBatch, EmbeddingOutput]]:
    """Each batch as tensors on the collection's device, with its embeddings, in order.

    depth: the rows of batch i hold exactly this loop's pushes of batches ≤ i − 1 − depth, on every run; 0 trains as the
           synchronous form does (reading, encoding and de-duplication still run ahead), 1 hides the store's work too.
    synchronous_steps: until `embeddings.optimizer()` has made so many steps, over all loops and resumes, depth is 0:
           the first steps of fresh rows are so long that a second one from the same weights overshoots.
    before_push: called before each batch's push, in the thread that makes it, after all calls before: what it does to
           the store, as an eviction, has its fixed place among the pushes. Not called for a batch that comes once more.

    `step()` hands its push over: before the store itself is read or saved inside the loop, call `embeddings.settle()`.
    `embeddings(batch)`, and an `evaluate` of the same collection, do so themselves.
    A batch whose push the store refuses as stale (`max_staleness`) comes once more, with fresh rows and under the same
    token. A batch whose `step()` is not called before the next one is asked for is not pushed. In evaluation mode
    nothing is pushed and pulls read `unseen` rows. Leaving the loop in any way carries out the pushes already made,
    stops the threads and closes `batches` (where the loop's iterator is held, its `close()` does).
    Raises: ValueError; in the loop, in its place among the batches, whatever reading or the store raised."""
    if not isinstance(batches, Iterable):
        raise TypeError(f"expected an iterable of batches, got {batches!r}")
    if not isinstance(embeddings, EmbeddingCollection):
        raise TypeError(f"expected an EmbeddingCollection, got {embeddings!r}")
    depth, synchronous_steps = whole_number(depth, "depth"), whole_number(synchronous_steps, "synchronous_steps")
    if depth < 0:
        raise ValueError(f"expected depth >= 0, got {depth}")
    if synchronous_steps < 0:
        raise ValueError(f"expected synchronous_steps >= 0, got {synchronous_steps}")
    return _run(batches, embeddings, depth, synchronous_steps, before_push)


def _run(
    batches: Iterable[FeatureBatch],
    embeddings: EmbeddingCollection,
    depth: int,
    synchronous_steps: int,
    before_push: Callable[[Push], object] | None,
) -> Iterator[tuple[TensorBatch, EmbeddingOutput]]:
    pipeline = _Pipeline(batches, embeddings, before_push)
    optimizer = embeddings.optimizer() if pipeline.training else None
    lag = 0  # pulls made so far ahead of a push that a synchronous loop makes before them
    try:
        pipeline.advance(None)
        while True:
            while lag < depth and (optimizer is None or optimizer.steps >= synchronous_steps):
                pipeline.advance(None)
                lag += 1
            if (ready := pipeline.next()) is None:
                break
            turn = _Turn(pipeline, embeddings, ready.rows)
            if optimizer is not None:
                ready.rows.require_gradients()
                optimizer.expect(ready.rows, turn.deliver)
            try:
                yield ready.batch, EmbeddingOutput(ready.rows)
            except BaseException:
                if optimizer is not None:
                    optimizer.forget(ready.rows)
                raise
            if optimizer is not None:
                optimizer.give_up(ready.rows)
            turn.end()
    except GeneratorExit:
        pipeline.close()
        pipeline.raise_lost_push()
        raise
    finally:
        pipeline.close()


class _Turn:
    """One batch's chance to be pushed: a push goes to the lane at once, the lack of one when the loop goes on."""

    def __init__(self, pipeline: _Pipeline, embeddings: EmbeddingCollection, rows: PulledRows) -> None:
        self._pipeline = pipeline
        self._embeddings = embeddings
        self._rows = rows
        self._delivered = False

    def deliver(self, pulled: PulledRows, *, step: int, lr_scale: float) -> None:
        self._delivered = True
        push = self._embeddings.make_push(pulled, step=step, lr_scale=lr_scale)
        self._pipeline.advance(_BatchPush(push, KeyedBatch(pulled.batch, pulled.unique), pulls=not pulled.recomputed))

    def end(self) -> None:
        # A recomputed batch took no other batch's turn, so giving it up makes no call.
        if not self._delivered and not self._rows.recomputed:
            self._pipeline.advance(None)


@dataclass(frozen=True, slots=True)
class _BatchPush:
    """A push, the batch it is of, and whether the next batch is pulled in the same call."""

    push: Push
    keyed: KeyedBatch
    pulls: bool


@dataclass(frozen=True, slots=True)
class _Ready:
    """A batch that can be trained: its tensors, its rows, and the event after their copies to the device."""

    batch: TensorBatch
    rows: PulledRows
    event: Any


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException


class _Stop:
    pass


class _Settle:
    """Wakes the lane where it waits for a batch: a push must not."""


class _End:
    """What no source gives."""


class _PushedAgain:
    """The answer to a call that pulled nothing."""


_END = _End()


class _Pipeline:
    """Two threads: one reads and de-duplicates, the lane makes the data calls, one for each `advance`.

    Thread safety: `advance`, `next` and `close` belong to the consumer.
    Invariants: 1. the n-th call carries the n-th `advance`'s push and pulls the next batch, unless the push is of a
    recomputed one. 2. each call has one answer, behind the batch that it found stale. 3. no call follows a failed one.
    4. `close` leaves no thread behind but one that is inside `batches`.
    """

    def __init__(
        self,
        batches: Iterable[FeatureBatch],
        embeddings: EmbeddingCollection,
        before_push: Callable[[Push], object] | None,
    ) -> None:
        self.training = embeddings.training
        self._before_push = before_push
        self._embeddings = embeddings
        self._prepared: SimpleQueue[KeyedBatch | _Settle | _Failure | None] = SimpleQueue()
        self._room = threading.Semaphore(PREPARED_AHEAD)
        self._calls: SimpleQueue[_BatchPush | _Stop | None] = SimpleQueue()
        self._answers: SimpleQueue[_Ready | _PushedAgain | _Failure | None] = SimpleQueue()
        self._open_calls = 0
        self._handed_over = 0
        self._last_push = 0
        self._settle_to = 0
        self._carried_out = 0
        self._lost_push: BaseException | None = None
        self._progress = threading.Condition()
        self._stopping = threading.Event()
        self._reading = YieldingThread()
        self._reader = threading.Thread(target=self._read, args=(batches,), name="prefetch-reader", daemon=True)
        self._lane = threading.Thread(target=self._exchange, name="prefetch-lane", daemon=True)
        embeddings.enter(self)
        self._reader.start()
        self._lane.start()

    def advance(self, push: _BatchPush | None) -> None:
        """Let the lane make its next call."""
        self._open_calls += 1
        self._handed_over += 1
        if push is not None:
            self._last_push = self._handed_over
        self._calls.put(push)

    def next(self) -> _Ready | None:
        """The next batch; None after the last one, once all pushes are carried out. Raises: what a thread raised."""
        ready = self._answer()
        while not isinstance(ready, _Ready) and self._open_calls:
            ready = self._answer()
        if not isinstance(ready, _Ready):
            return None
        self._embeddings.transfer.ready(ready.event, [*ready.batch.tensors(), *ready.rows.leaves])
        return ready

    def settle(self) -> None:
        """Wait until the pushes handed over are carried out; in the loop's own threads, which do it, come back at once.

        A pull beside the last push may still wait for its batch; pulls before it, at a depth above 0, must not.
        Raises: what the store raised, if one of the pushes is lost by it; TimeoutError."""
        target = self._last_push
        if threading.current_thread() in (self._lane, self._reader):
            return
        if self._carried_out < target:
            self._settle_to = target
            self._prepared.put(_Settle())
            with self._progress:
                if not self._progress.wait_for(lambda: self._carried_out >= target, SETTLE_SECONDS):
                    raise TimeoutError(
                        f"expected the pushes of the prefetch loop in the store within {SETTLE_SECONDS:.0f} s, got "
                        "some that wait for the click log to give the batches that are pulled before them; at depth 0 "
                        "none are"
                    )
        if not self._stopping.is_set():
            self.raise_lost_push()

    def close(self) -> None:
        """Carry out the pushes made and stop the threads; idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._room.release()
        self._prepared.put(None)
        self._calls.put(_Stop())
        self._lane.join()
        with self._reading.awaited():
            self._reader.join(READER_PATIENCE_SECONDS)

    def raise_lost_push(self) -> None:
        """Raises: what the store raised, if a push that was made is lost by it; after `close` all are known."""
        if self._lost_push is not None:
            raise self._lost_push

    def _answer(self) -> _Ready | _PushedAgain | None:
        answer = self._answers.get()
        if not (isinstance(answer, _Ready) and answer.rows.recomputed):
            self._open_calls -= 1
        if isinstance(answer, _Failure):
            raise answer.error
        return answer

    def _read(self, batches: Iterable[FeatureBatch]) -> None:
        iterator: Iterator[FeatureBatch] = iter(())
        end: _Failure | None = None
        try:
            self._reading.begin()
            iterator = iter(batches)
            while True:
                self._room.acquire()
                if self._prepared.qsize() >= RESTING_AHEAD:
                    self._reading.rest()
                if self._stopping.is_set() or isinstance(batch := next(iterator, _END), _End):
                    break
                self._prepared.put(self._embeddings.prepare(batch, for_push=self.training))
        except BaseException as error:
            end = _Failure(error)
        try:
            self._reading.end()
            # A generator is closed in the thread that ran it, so that its own threads and files go with it.
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
        except BaseException as error:
            end = end or _Failure(error)
        self._prepared.put(end)

    def _exchange(self) -> None:
        ended, broken = False, None
        calls = 0
        while not isinstance(push := self._calls.get(), _Stop):
            calls += 1
            if broken is not None:
                self._fail(broken, calls, lost_push=push is not None)
                continue
            keyed, failure = None, None
            try:
                if not ended and not self._stopping.is_set() and (push is None or push.pulls):
                    while isinstance(item := self._next_prepared(calls, waits=push is None), _Settle):
                        if push is not None and self._settle_to >= calls:
                            self._call(push, None)
                            push = None
                            self._carried(calls)
                    self._room.release()
                    if isinstance(item, KeyedBatch):
                        keyed = item
                    else:
                        ended, failure = True, item
                ready = self._call(push, keyed)
            except BaseException as error:
                broken = error
                self._fail(error, calls, lost_push=push is not None)
            else:
                self._answers.put(failure or ready)
                self._carried(calls)

    def _fail(self, error: BaseException, calls: int, *, lost_push: bool) -> None:
        if lost_push:
            self._lost_push = error
        self._answers.put(_Failure(error))
        self._carried(calls)

    def _carried(self, calls: int) -> None:
        with self._progress:
            self._carried_out = calls
            self._progress.notify_all()

    def _next_prepared(self, calls: int, *, waits: bool) -> KeyedBatch | _Settle | _Failure | None:
        """What comes next; where a push of this call must not wait for it, `_Settle`."""
        try:
            return self._prepared.get_nowait()
        except Empty:
            if not waits and self._settle_to >= calls:
                return _Settle()
            with self._reading.awaited():
                return self._prepared.get()

    def _call(self, push: _BatchPush | None, keyed: KeyedBatch | None) -> _Ready | _PushedAgain | None:
        if push is None and keyed is None:
            return None
        if push is not None and push.pulls and self._before_push is not None:
            self._before_push(push.push)
        answer = self._embeddings.exchange(None if push is None else push.push, keyed, training=self.training)
        if push is not None and answer.report is not None and answer.report.stale and not self._stopping.is_set():
            fresh = self._embeddings.exchange(None, push.keyed, training=self.training)
            self._answers.put(self._ready(push.keyed, fresh, recomputed=True))
        if keyed is not None:
            return self._ready(keyed, answer)
        return _PushedAgain() if push is not None and not push.pulls else None

    def _ready(self, keyed: KeyedBatch, answer: Exchange, *, recomputed: bool = False) -> _Ready:
        rows = self._embeddings.pulled(keyed, answer, recomputed=recomputed)
        transfer = self._embeddings.transfer
        batch = TensorBatch.of(keyed.batch, transfer)
        return _Ready(batch, rows, transfer.finish())
