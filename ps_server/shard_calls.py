"""Calls to the shards of a cluster: to all, to the owners of keys, to the owner of a tablet, by the newest map."""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import Any, TypeVar

import numpy as np
from google.protobuf.message import Message

from ..embedding.table_group import TableKeys
from . import parameter_server_pb2 as pb
from .cluster_links import ClusterLinks
from .errors import WrongShardError
from .exchange_parts import Positions
from .partition import split_keys
from .tablets import TabletMask
from .wire_calls import parse

Answer = TypeVar("Answer")
EncodeKeys = Callable[[pb.CallHeader, TableKeys, Positions, TabletMask], bytes]


class ShardCalls:
    """Each call of the store as one call a shard, all at once; keys of tablets that moved go to their new owner.

    Thread safety: one caller at a time (the store's lane).
    Raises: StoreUnavailableError, and what the shards refuse.
    """

    def __init__(self, links: ClusterLinks) -> None:
        self._links = links
        self._pool: ThreadPoolExecutor | None = None
        self._left: list[Future[Any]] = []

    def side_by_side(self, calls: Sequence[Callable[[], Answer]]) -> list[Answer | WrongShardError]:
        """Replies of calls to several shards, made at once, in order; a call to the wrong shard gives its error.

        Every call is resolved before another error is raised, and before the next one is made where the caller was
        interrupted: no call of an older step is ever on its way beside it, with memory that both use."""
        wait(self._left)
        if len(calls) == 1:
            return [_answer_of(calls[0])]
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._links.map.shards, thread_name_prefix="shard")
        others = self._left = [self._pool.submit(_answer_of, call) for call in calls[1:]]
        failure: Exception | None = None
        answers: list[Answer | WrongShardError] = []
        try:
            for number in range(len(calls)):
                try:
                    answers.append(_answer_of(calls[0]) if number == 0 else others[number - 1].result())
                except Exception as error:
                    failure = failure or error
        finally:
            wait(others)  # where the caller is interrupted; a second time, and they are left
            self._left = []  # and with them the replies
        if failure is not None:
            raise failure
        return answers

    def everywhere(self, method: str, request: Callable[[pb.CallHeader], Message]) -> list[bytes]:
        """Replies of all shards to the same request, in shard order."""
        links = [self._links.link(shard) for shard in range(self._links.map.shards)]
        calls = [functools.partial(link.call, method, request(link.header).SerializeToString()) for link in links]
        replies = []
        for answer in self.side_by_side(calls):
            if isinstance(answer, WrongShardError):
                raise answer
            replies.append(answer)
        return replies

    def by_owner(self, method: str, keys: TableKeys, encode: EncodeKeys) -> int:
        """Sum of the counts with which the owners of the keys answer."""
        until = time.monotonic() + self._links.patience.call_seconds
        rest: list[tuple[Positions, TabletMask | None]] = [(np.arange(len(keys.keys), dtype=np.intp), None)]
        total = 0
        while rest:
            parts, calls = [], []
            for positions, covered in rest:
                for part in split_keys(keys, self._links.map, positions):
                    link = self._links.link(part.shard)
                    tablets = self._links.map.tablets_of(part.shard)
                    tablets = tablets if covered is None else tablets & covered
                    data = encode(link.header, part.keys, part.positions, tablets)
                    parts.append((part.positions, tablets))
                    calls.append(functools.partial(link.call, method, data))
            rest = []
            for part_sent, answer in zip(parts, self.side_by_side(calls), strict=True):
                if isinstance(answer, WrongShardError):
                    stray = answer
                    rest.append(part_sent)
                else:
                    total += int(parse(answer, pb.Count()).count)
            if rest:
                self._links.adopt_newer_map(stray, until)
        return total

    def at_tablet(
        self, tablet: int, method: str, request: Callable[[pb.CallHeader], bytes], *, reply_bytes: int = 0
    ) -> bytes:
        """The reply of the shard that owns the tablet. Raises: ValueError for a tablet there is not."""
        count = 1 << self._links.map.tablet_bits
        if not 0 <= tablet < count:
            raise ValueError(f"expected a tablet from 0 to {count - 1}, got {tablet}")
        wait(self._left)
        until = time.monotonic() + self._links.patience.call_seconds
        while True:
            link = self._links.link(int(self._links.map.owners[tablet]))
            try:
                return link.call(method, request(link.header), reply_bytes=reply_bytes)
            except WrongShardError as error:
                self._links.adopt_newer_map(error, until)

    def close(self) -> None:
        """End the threads and close the links."""
        if self._pool is not None:
            self._pool.shutdown()
        self._links.close()


def _answer_of(call: Callable[[], Answer]) -> Answer | WrongShardError:
    try:
        return call()
    except WrongShardError as error:
        return error
