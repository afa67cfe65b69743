"""prefetch: batches with their embeddings, read, de-duplicated and pulled ahead of the step."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any

from ..embedding.store import Push
from ..feature_map.batch import FeatureBatch
from .embedding_collection import EmbeddingCollection
from .embedding_output import EmbeddingOutput
from .pulled_rows import KeyedBatch, PulledRows
from .tensor_batch import TensorBatch

PREPARED_AHEAD = 2
"""De-duplicated batches that wait for their pull."""

READER_PATIENCE_SECONDS = 10.0
"""How long leaving a loop waits for a reader that is inside its source."""


def prefetch(
    batches: Iterable[FeatureBatch], embeddings: EmbeddingCollection, depth: int = 1
) -> Iterator[tuple[TensorBatch, EmbeddingOutput]]:
    """Each batch as tensors on the collection's device, with its embeddings, in order.

    depth: the rows of batch i hold exactly this loop's pushes of batches ≤ i − 1 − depth, on every run; 0 trains as the
           synchronous form does (reading, encoding and de-duplication still run ahead), 1 hides the store's work too.

    A batch whose `step()` is not called before the next one is asked for is not pushed. In evaluation mode nothing is
    pushed and pulls read `unseen` rows. Leaving the loop in any way carries out the pushes already made, stops the
    threads and closes `batches`.
    Raises: ValueError; in the loop, in its place among the batches, whatever reading or the store raised."""
    if depth < 0:
        raise ValueError(f"expected depth >= 0, got {depth}")
    return _run(batches, embeddings, depth)


def _run(
    batches: Iterable[FeatureBatch], embeddings: EmbeddingCollection, depth: int
) -> Iterator[tuple[TensorBatch, EmbeddingOutput]]:
    pipeline = _Pipeline(batches, embeddings)
    optimizer = embeddings.optimizer() if pipeline.training else None
    try:
        for _ in range(depth + 1):
            pipeline.advance(None)
        while (ready := pipeline.next()) is not None:
            turn = _Turn(pipeline, embeddings)
            if optimizer is not None:
                ready.rows.require_gradients()
                optimizer.expect(ready.rows, turn.deliver)
            try:
                yield ready.batch, EmbeddingOutput(ready.rows)
            finally:
                if optimizer is not None:
                    optimizer.forget(ready.rows)
            turn.end()
    except GeneratorExit:
        pipeline.close()
        pipeline.raise_lost_push()
        raise
    finally:
        pipeline.close()


class _Turn:
    """One batch's chance to be pushed: a push goes to the lane at once, the lack of one when the loop goes on."""

    def __init__(self, pipeline: _Pipeline, embeddings: EmbeddingCollection) -> None:
        self._pipeline = pipeline
        self._embeddings = embeddings
        self._delivered = False

    def deliver(self, pulled: PulledRows, *, step: int, lr_scale: float) -> None:
        self._delivered = True
        self._pipeline.advance(self._embeddings.make_push(pulled, step=step, lr_scale=lr_scale))

    def end(self) -> None:
        if not self._delivered:
            self._pipeline.advance(None)


@dataclass(frozen=True, slots=True)
class _Ready:
    """A batch that can be trained: its tensors, its rows, and the event after their copies to the device."""

    batch: TensorBatch
    rows: PulledRows
    event: Any


@dataclass(frozen=True, slots=True)
class _Failure:
    error: BaseException
    lost_push: bool = False


class _Stop:
    pass


class _Pipeline:
    """Two threads: one reads and de-duplicates, the lane makes the data calls, one for each `advance`.

    Thread safety: `advance`, `next` and `close` belong to the consumer.
    Invariants: 1. the n-th call carries the n-th `advance`'s push and pulls the n-th batch. 2. each call has one
    answer. 3. no call follows a failed one. 4. `close` leaves no thread behind but one that is inside `batches`.
    """

    def __init__(self, batches: Iterable[FeatureBatch], embeddings: EmbeddingCollection) -> None:
        self.training = embeddings.training
        self._embeddings = embeddings
        self._prepared: SimpleQueue[KeyedBatch | _Failure | None] = SimpleQueue()
        self._room = threading.Semaphore(PREPARED_AHEAD)
        self._calls: SimpleQueue[Push | _Stop | None] = SimpleQueue()
        self._answers: SimpleQueue[_Ready | _Failure | None] = SimpleQueue()
        self._open_calls = 0
        self._stopping = threading.Event()
        self._reader = threading.Thread(target=self._read, args=(batches,), name="prefetch-reader", daemon=True)
        self._lane = threading.Thread(target=self._exchange, name="prefetch-lane", daemon=True)
        self._reader.start()
        self._lane.start()

    def advance(self, push: Push | None) -> None:
        """Let the lane make its next call."""
        self._open_calls += 1
        self._calls.put(push)

    def next(self) -> _Ready | None:
        """The next batch; None after the last one, once all pushes are carried out. Raises: what a thread raised."""
        ready = self._answer()
        while ready is None and self._open_calls:
            self._answer()
        if ready is not None:
            self._embeddings.transfer.ready(ready.event, [*ready.batch.tensors(), *ready.rows.leaves])
        return ready

    def close(self) -> None:
        """Carry out the pushes made and stop the threads; idempotent."""
        if self._stopping.is_set():
            return
        self._stopping.set()
        self._room.release()
        self._prepared.put(None)
        self._calls.put(_Stop())
        self._lane.join()
        self._reader.join(READER_PATIENCE_SECONDS)

    def raise_lost_push(self) -> None:
        """After `close`. Raises: what the store raised, if a push that was made is lost by it."""
        while not self._answers.empty():
            answer = self._answers.get()
            if isinstance(answer, _Failure) and answer.lost_push:
                raise answer.error

    def _answer(self) -> _Ready | None:
        answer = self._answers.get()
        self._open_calls -= 1
        if isinstance(answer, _Failure):
            raise answer.error
        return answer

    def _read(self, batches: Iterable[FeatureBatch]) -> None:
        iterator: Iterator[FeatureBatch] = iter(())
        end: _Failure | None = None
        try:
            iterator = iter(batches)
            while True:
                self._room.acquire()
                if self._stopping.is_set() or (batch := next(iterator, None)) is None:
                    break
                self._prepared.put(self._embeddings.prepare(batch))
        except BaseException as error:
            end = _Failure(error)
        finally:
            # A generator is closed in the thread that ran it, so that its own threads and files go with it.
            close = getattr(iterator, "close", None)
            if close is not None:
                close()
            self._prepared.put(end)

    def _exchange(self) -> None:
        ended, broken = False, None
        while not isinstance(push := self._calls.get(), _Stop):
            if broken is not None:
                self._answers.put(_Failure(broken, lost_push=push is not None))
                continue
            keyed, failure = None, None
            if not ended and not self._stopping.is_set():
                item = self._prepared.get()
                self._room.release()
                if isinstance(item, KeyedBatch):
                    keyed = item
                else:
                    ended, failure = True, item
            try:
                ready = self._call(push, keyed)
            except BaseException as error:
                broken = error
                self._answers.put(_Failure(error, lost_push=push is not None))
            else:
                self._answers.put(failure or ready)

    def _call(self, push: Push | None, keyed: KeyedBatch | None) -> _Ready | None:
        if push is None and keyed is None:
            return None
        answer = self._embeddings.exchange(push, keyed, training=self.training)
        if keyed is None:
            return None
        rows = self._embeddings.pulled(keyed, answer)
        transfer = self._embeddings.transfer
        batch = TensorBatch.of(keyed.batch, transfer)
        return _Ready(batch, rows, transfer.finish())
