"""RemoteStore: the store protocol over the shards of a cluster."""

from __future__ import annotations

import contextlib
import functools
import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ..datasets.argument_checks import whole_number
from ..embedding.errors import UnknownTableError
from ..embedding.store import Exchange, Pull, Push, TakenSnapshots
from ..embedding.store_checks import (
    check_arrays,
    check_exchange,
    check_keys,
    check_number,
    check_snapshot,
    check_tables,
)
from ..embedding.table_config import TableConfig
from ..embedding.table_group import TableKeys, TableStats, TabletSnapshot
from . import parameter_server_pb2 as pb
from .allocator import keep_large_buffers
from .chunks import LARGE_BYTES
from .client_tokens import ClientTokens
from .cluster_links import ClusterLinks
from .errors import SharedStoreNeededError, StoreClosedError, WrongShardError
from .exchange_parts import ExchangePart, GatheredExchange, Positions, check_values, merge_stats
from .gradient_guard import GradientGuard, GuardOptions
from .lane import Lane
from .partition import RowLayout, split_keys
from .refused_rows import log_refused_rows
from .request_size import check_parts, check_size, push_bytes
from .shard_calls import ShardCalls
from .shard_checkpoint import begin_checkpoint, commit_checkpoint
from .shard_link import ExchangeBytes, ShardLink
from .shard_status import ShardStatus, decode_status
from .snapshot_wire import decode_snapshot, encode_restore, encode_snapshot
from .tablets import TabletMask, check_evict
from .wire import encode_mask, encode_token, exchange_message
from .wire_calls import (
    decode_stats,
    decode_tables,
    encode_assign,
    encode_erase,
    encode_tables,
    parse,
)
from .wire_values import WireFormat, storage_dtype


class RemoteStore:
    """Rows of all tables on the shards of a cluster; see `EmbeddingStore`. Made by `connect`.

    Calls go out under one token, in order, at most one at a time (the lane); within a call all shards work at once. A
    shard that does not answer is asked again under the same token until `Patience` ends.
    Thread safety: any verb from any thread. After a fork every verb raises SharedStoreNeededError in the child.
    Raises: StoreUnavailableError naming shard, peer, tablets, epoch and elapsed time; the call may then be repeated.
    A call that one shard refuses (a key twice, say) may have been carried out by the others.
    """

    def __init__(
        self,
        links: ClusterLinks,
        *,
        wire: WireFormat | None = None,
        guard: GuardOptions | None = None,
        clock: Callable[[], int] = lambda: 0,
    ) -> None:
        """wire: how rows and gradients travel.   clock: seconds, stored as `touched_at` by `assign`.
        guard: keeps gradients that are not finite or far outside the running norm of all workers from the shards."""
        keep_large_buffers()
        self._process = os.getpid()
        self._links = links
        self._calls = ShardCalls(links)
        self._wire = wire or WireFormat()
        self._guard = None if guard is None else GradientGuard(guard)
        self._clock = clock
        self._tokens = ClientTokens()
        self._lane = Lane()
        self._widths: dict[str, int] = {}
        self._state_widths: dict[str, int] = {}
        self._wants_checkpoint = False
        self._closed = False

    @property
    def identity(self) -> str:
        """Name that is unique to this store's rows."""
        return self._links.identity

    @property
    def tablet_bits(self) -> int:
        """The key space is cut into 2^tablet_bits ranges."""
        return self._links.map.tablet_bits

    # --- tables -------------------------------------------------------------------------------------------------------

    def ensure_tables(self, tables: Sequence[TableConfig]) -> None:
        """Make the tables exist on every shard; idempotent. Raises: TableConflictError naming the field."""
        tables = check_tables(tables)
        with self._turn():
            for shard in range(self._links.map.shards):
                self._read_tables(shard, tables)

    def tables(self) -> tuple[TableConfig, ...]:
        """Configurations of the tables there are."""
        with self._turn():
            return self._read_tables(0, ())

    def drop_table(self, name: str) -> None:
        """Remove a table with its rows. Raises: UnknownTableError."""
        with self._turn():
            token = self._tokens.next()
            self._calls.everywhere(
                "DropTable", lambda header: pb.DropTableRequest(header=header, token=encode_token(token), table=name)
            )
            self._widths.pop(name, None)

    # --- data ---------------------------------------------------------------------------------------------------------

    def prepare_push(self, keys: TableKeys, occurrences: npt.NDArray[np.uint32]) -> object | None:
        """None: shards prepare the keys of a push themselves, while its gradients are on their way."""
        return None

    def exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
        """Apply the push, then read the rows; one call a shard. Calls are carried out one at a time, in call order."""
        check_exchange(push, pull)
        with self._turn(), self._widths_of_now():
            if push is not None and push.token is None:
                push = replace(push, token=self._tokens.next())
            return self._exchange(push, pull)

    def assign(
        self,
        keys: TableKeys,
        weights: npt.NDArray[np.float32],
        state: npt.NDArray[np.float32] | None = None,
        *,
        if_absent: bool = False,
    ) -> int:
        """Rows set; see `TableGroup.assign`."""
        check_keys(keys)
        check_arrays(weights=weights, state=state)
        with self._turn(), self._widths_of_now():
            token, now = self._tokens.next(), self._clock()
            layout = self._layout(keys)
            check_values(weights, layout.size, "weights")
            states = None if state is None else RowLayout(keys, self._state_widths)
            if states is not None and state is not None:
                check_values(state, states.size, "state values")
            size = keys.keys.nbytes + weights.nbytes + (0 if state is None else state.nbytes)
            check_size("rows to assign", size, self._links)

            def encode(header: pb.CallHeader, part: TableKeys, at: Positions, tablets: TabletMask) -> bytes:
                return encode_assign(
                    header,
                    token,
                    part,
                    layout.take(weights, at),
                    None if states is None or state is None else states.take(state, at),
                    if_absent=if_absent,
                    now=now,
                    tablets=tablets,
                    widths=self._widths,
                )

            return self._calls.by_owner("Assign", keys, encode)

    def erase(self, keys: TableKeys) -> int:
        """Rows removed."""
        check_keys(keys)
        with self._turn():
            token = self._tokens.next()
            return self._calls.by_owner(
                "Erase", keys, lambda header, part, _, tablets: encode_erase(header, token, part, tablets)
            )

    def evict(self, now: int, max_rows: int | None = None, tablets: TabletMask | None = None) -> dict[str, int]:
        """Rows removed per table by the tables' eviction policies.

        max_rows: rows that each shard looks at; the next call goes on after them. None: all rows.
        tablets:  (2^t,) instead, the tablets whose rows are looked at.   Raises: ValueError."""
        with self._turn():
            # Here too: bits say nothing of how many flags they stand for, and no bits at all mean every tablet.
            tablets = check_evict(now, max_rows, tablets, self.tablet_bits)
            mask = b"" if tablets is None else encode_mask(tablets)
            token = encode_token(self._tokens.next())
            replies = self._calls.everywhere(
                "Evict",
                lambda header: pb.EvictRequest(header=header, token=token, now=now, max_rows=max_rows, tablets=mask),
            )
            total: dict[str, int] = {}
            for reply in replies:
                for table, rows in parse(reply, pb.Counts()).counts.items():
                    total[table] = total.get(table, 0) + rows
            return total

    def stats(self) -> dict[str, TableStats]:
        """Rows and bytes per table, over all shards."""
        with self._turn():
            replies = self._calls.everywhere("Stats", lambda header: pb.StatsRequest(header=header))
            return merge_stats([decode_stats(reply) for reply in replies])

    def status(self) -> list[ShardStatus]:
        """What each shard says of itself: load, memory, processor time, network; one entry a shard."""
        with self._turn():
            replies = self._calls.everywhere("Status", lambda _: pb.StatusRequest())
            return [
                decode_status(reply, address) for reply, address in zip(replies, self._links.map.addresses, strict=True)
            ]

    # --- tablets ------------------------------------------------------------------------------------------------------

    def snapshot(self, tablet: int, since_version: int | None = None) -> TabletSnapshot:
        """Consistent copy of one tablet with its applied memory."""
        tablet = whole_number(tablet, "tablet")
        if since_version is not None:
            check_number(since_version, "since_version", 32)
        with self._turn():
            reply = self._calls.at_tablet(
                tablet,
                "Snapshot",
                lambda header: pb.SnapshotRequest(
                    header=header, tablet=tablet, since_version=since_version
                ).SerializeToString(),
                reply_bytes=LARGE_BYTES,  # it may be as small as nothing, and larger than one message
            )
            return decode_snapshot(reply)

    def restore(self, snapshot: TabletSnapshot) -> None:
        """Replace (or merge a delta into) one tablet."""
        check_snapshot(snapshot)
        with self._turn():
            message, token = encode_snapshot(snapshot), self._tokens.next()
            self._calls.at_tablet(snapshot.tablet, "Restore", lambda header: encode_restore(header, token, message))

    def cut(self, tablet: int) -> int:
        """Bump the tablet's version; changes from now on carry the new one, which is returned."""
        tablet = whole_number(tablet, "tablet")
        with self._turn():
            token = encode_token(self._tokens.next())
            reply = self._calls.at_tablet(
                tablet,
                "Cut",
                lambda header: pb.CutRequest(header=header, token=token, tablet=tablet).SerializeToString(),
            )
            return int(parse(reply, pb.Count()).count)

    @property
    def wants_checkpoint(self) -> bool:
        """Whether a shard's push log was past its limit at the last push; a committed checkpoint lets it be trimmed."""
        return self._wants_checkpoint

    def begin_checkpoint(self) -> int:
        """Number of a checkpoint that snapshots from here on may make up; pushes and other snapshots may go on.

        One that was begun before, through any connection, and is not committed yet is given up."""
        with self._turn():
            return begin_checkpoint(self._calls)

    def commit_checkpoint(self, checkpoint: str, taken: TakenSnapshots | None = None) -> bool:
        """The checkpoint at this path is complete and holds the snapshots `taken`: push logs are trimmed to it, and
        shards start again from it. None only asks.

        False: a shard that was started again in between, or takes another checkpoint by now, keeps its log, and the
        older checkpoint it goes on from, until the next one; a warning names it."""
        with self._turn():
            is_everywhere = commit_checkpoint(self._links, checkpoint, taken)
            self._wants_checkpoint = self._wants_checkpoint and taken is None
            return is_everywhere

    def complete_unit(self, unit: int) -> None:
        """Let the tablets drop their applied memory of a finished work unit; late pushes of it are fenced."""
        check_number(unit, "unit", 64)
        with self._turn():
            self._calls.everywhere("CompleteUnit", lambda header: pb.CompleteUnitRequest(header=header, unit=unit))

    def close(self) -> None:
        """Close the channels; idempotent."""
        if self._process == os.getpid():
            with self._lane:
                self._closed = True
                self._calls.close()

    def __enter__(self) -> RemoteStore:
        return self

    def __exit__(self, *error: object) -> None:
        self.close()

    def __deepcopy__(self, memo: dict[int, object]) -> RemoteStore:
        raise TypeError(
            "expected one store to one connection, got deepcopy of a RemoteStore; share it, or connect again"
        )

    def __reduce__(self) -> str:
        raise TypeError(
            "expected a store to stay in its process, got pickle of a RemoteStore; connect in the other one"
        )

    # --- exchange -----------------------------------------------------------------------------------------------------

    def _exchange(self, push: Push | None, pull: Pull | None) -> Exchange:
        push_layout = None if push is None else self._layout(push.keys)
        guarded = None
        if push is not None and push_layout is not None:
            check_values(push.gradients, push_layout.size, "gradient values")
            check_size("a push", push_bytes(push, self._wire.dtype), self._links)
            if self._guard is not None:
                guarded = self._guard.inspect(push, self._widths)
                push = guarded.push
                push_layout = self._layout(push.keys)
        widths = self._widths
        pull_layout = None if pull is None else self._layout(pull.keys)
        if push is not None and self._widths is not widths:
            push_layout = self._layout(push.keys)  # tables were read anew for the pull's, maybe without the push's
        slices: list[Positions | None] = [None]
        if pull is not None and pull_layout is not None:
            slices = self._pull_slices(pull, pull_layout)
        gathered = GatheredExchange(push, pull, pull_layout, self._links.map.tablet_bits, whole=slices == [None])
        for number, positions in enumerate(slices):
            parts = self._plan(push if number == 0 else None, push_layout, None, None, pull, positions)
            check_parts(parts, self._wire.dtype, self._links)
            self._run(parts, push, push_layout, pull, gathered, None if guarded is None else guarded.norms)
        answer = gathered.exchange()
        if push is not None:
            self._wants_checkpoint = gathered.wants_checkpoint
        if guarded is not None and answer.report is not None and self._guard is not None:
            self._guard.learn(gathered.norms)
            answer = replace(answer, report=guarded.add_to(answer.report))
        if push is not None and answer.report is not None and answer.report.non_finite_keys:
            log_refused_rows(answer.report, push.token, answer.report.held_out)
        return answer

    def _run(
        self,
        parts: list[ExchangePart],
        push: Push | None,
        push_layout: RowLayout | None,
        pull: Pull | None,
        gathered: GatheredExchange,
        norms: dict[str, float] | None,
    ) -> None:
        until = time.monotonic() + self._links.patience.call_seconds
        while parts:
            map_before = self._links.map
            links = [self._links.link(part.shard) for part in parts]
            # Two refused parts may meet at one shard; its shared memory holds one exchange.
            first_at_shard = {part.shard: part for part in reversed(parts)}
            answers = self._calls.side_by_side(
                [
                    functools.partial(self._send, link, part, norms, in_memory=first_at_shard[part.shard] is part)
                    for link, part in zip(links, parts, strict=True)
                ]
            )
            strays: list[tuple[ExchangePart, WrongShardError]] = []
            for part, answer in zip(parts, answers, strict=True):
                if isinstance(answer, WrongShardError):
                    strays.append((part, answer))
                else:
                    gathered.add(part, answer, map_before.tablets_of(part.shard))
            parts = []
            if strays:
                self._links.adopt_newer_map(strays[0][1], until)
            for part, _ in strays:
                parts += self._plan(
                    push if part.push is not None else None,
                    push_layout,
                    part.push_positions,
                    part.tablets,
                    pull if part.pull is not None else None,
                    part.pull_positions,
                )

    def _plan(
        self,
        push: Push | None,
        layout: RowLayout | None,
        push_positions: Positions | None,
        covered: TabletMask | None,
        pull: Pull | None,
        pull_positions: Positions | None,
    ) -> list[ExchangePart]:
        """One part for each shard that has keys of the (rest of the) request under the current map."""
        tablet_map = self._links.map
        if tablet_map.shards == 1 and push_positions is None and pull_positions is None:
            return [ExchangePart(0, push, covered, None, pull, None)]
        pushes = (
            {} if push is None else {part.shard: part for part in split_keys(push.keys, tablet_map, push_positions)}
        )
        pulls = {} if pull is None else {part.shard: part for part in split_keys(pull.keys, tablet_map, pull_positions)}
        parts = []
        for shard in sorted(pushes.keys() | pulls.keys()):
            own_push = own_pull = tablets = push_at = pull_at = None
            if push is not None and layout is not None and shard in pushes:
                push_at = pushes[shard].positions
                own_push = replace(
                    push,
                    keys=pushes[shard].keys,
                    gradients=layout.take(push.gradients, push_at),
                    occurrences=push.occurrences[push_at],
                    clicks=None if push.clicks is None else push.clicks[push_at],
                )
                tablets = tablet_map.tablets_of(shard)
                tablets = tablets if covered is None else tablets & covered
            if pull is not None and shard in pulls:
                pull_at = pulls[shard].positions
                own_pull = Pull(pulls[shard].keys, pull.absent)
            parts.append(ExchangePart(shard, own_push, tablets, push_at, own_pull, pull_at))
        return parts

    def _send(
        self, link: ShardLink, part: ExchangePart, norms: dict[str, float] | None, *, in_memory: bool
    ) -> ExchangeBytes:
        small, arrays = exchange_message(
            link.header, part.push, part.pull, self._wire, tablets=part.tablets, norms=norms, widths=self._widths
        )
        reply = 0
        if part.pull is not None:
            counts = np.diff(part.pull.keys.splits).tolist()
            values = sum(n * self._widths[table] for n, table in zip(counts, part.pull.keys.tables, strict=True))
            reply = values * storage_dtype(self._wire.dtype).itemsize
        return link.exchange(small, arrays, reply, in_memory=in_memory and self._wire.compression == "none")

    def _pull_slices(self, pull: Pull, layout: RowLayout) -> list[Positions | None]:
        """One slice, or as many as keep each reply below half of what a call may carry."""
        most = self._links.max_request_bytes // 2
        pieces = -(-(layout.size * 4 + pull.keys.keys.nbytes) // most)
        if pieces <= 1:
            return [None]
        return list(np.array_split(np.arange(len(pull.keys.keys), dtype=np.intp), pieces))

    # --- other calls --------------------------------------------------------------------------------------------------

    def _read_tables(self, shard: int, tables: Sequence[TableConfig]) -> tuple[TableConfig, ...]:
        link = self._links.link(shard)
        request = pb.EnsureTablesRequest(header=link.header, tables=encode_tables(tables))
        reply = parse(link.call("EnsureTables", request.SerializeToString()), pb.TablesReply())
        known = decode_tables(reply.tables)
        self._widths = {table.name: table.dim for table in known}
        self._state_widths = {table.name: width for table, width in zip(known, reply.state_widths, strict=True)}
        return known

    @contextlib.contextmanager
    def _widths_of_now(self) -> Iterator[None]:
        """Asks the shards again after a refusal: another client may have dropped a table and made it anew."""
        try:
            yield
        except (ValueError, LookupError):
            self._widths.clear()
            self._state_widths.clear()
            raise

    def _layout(self, keys: TableKeys) -> RowLayout:
        try:
            return RowLayout(keys, self._widths)
        except KeyError:
            self._read_tables(0, ())
        unknown = [table for table in keys.tables if table not in self._widths]
        if unknown:
            who = self._links.link(0).name
            raise UnknownTableError(f"{who}: expected one of tables {sorted(self._widths)}, got {unknown[0]!r}")
        return RowLayout(keys, self._widths)

    def _turn(self) -> Lane:
        if self._process != os.getpid():
            raise SharedStoreNeededError(
                f"expected process {self._process}, which made this connection, got its fork {os.getpid()}: sockets "
                "and threads do not survive a fork; use es.connect in the child, or start workers with spawn"
            )
        if self._closed:
            raise StoreClosedError("expected an open RemoteStore, got one that was closed")
        return self._lane
