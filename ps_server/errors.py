"""Errors of the store: one class per decision a caller can take."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


class StoreClosedError(RuntimeError):
    """The store was closed; make a new one."""


class SharedStoreNeededError(RuntimeError):
    """A store of one process is used by several (a fork, or a world size above 1); the way out is `es.connect`."""


class HalfChangedError(RuntimeError):
    """Memory ran out, say, while a mutation was applied: some of its rows are changed, others are not, and it counts as
    not applied. What is left is good for reading alone: restore a checkpoint into a new store."""


class WrongShardError(LookupError):
    """The shard does not own some of the request's tablets; nothing was read or changed.

    tablets: the tablets that are not here.   epoch: of the map the shard knows.
    """

    def __init__(self, tablets: Sequence[int], epoch: int) -> None:
        self.tablets = tuple(tablets)
        self.epoch = epoch
        shown = ", ".join(map(str, self.tablets[:8])) + (", …" if len(self.tablets) > 8 else "")
        super().__init__(f"expected tablets this shard owns at map epoch {epoch}, got tablets {shown}")


class GenerationError(RuntimeError):
    """The caller belongs to another generation; it has to adopt the newer one, or is a zombie of an older one."""

    def __init__(self, expected: int, got: int) -> None:
        self.expected, self.got = expected, got
        super().__init__(f"expected generation {expected}, got {got}")


class WireFormatError(ValueError):
    """Bytes that are no message of this protocol, or one that contradicts itself; nothing was read or changed."""


class RequestTooLargeError(ValueError):
    """A request or reply is above the size limit; the message names the size, the limit and the way out."""


class SharedMemoryGoneError(LookupError):
    """The shard has not mapped the block a call speaks of (it was restarted, say): send the arrays themselves."""


class StoreUnavailableError(ConnectionError):
    """A shard did not answer in time, after retries; the message names shard, peer, tablets, epoch and elapsed time."""


class WrongPeerError(ConnectionError):
    """Who answers at the address is another cluster, another shard, or speaks another protocol."""


class AccessDeniedError(PermissionError):
    """The server refused the token, or one side's TLS identity."""


class LostRowsError(RuntimeError):
    """A shard came back without its rows (no push log, or its disk is gone); restore a checkpoint."""


class DurabilityError(OSError):
    """The shard cannot write its push log (disk full, say): the mutation was refused, nothing acknowledged is lost."""


class PushLogFullError(DurabilityError):
    """There is no room for the record; nothing was changed, and the call may be repeated when there is."""


class PushLogFailedError(RuntimeError):
    """Memory and push log may differ, as after a disk error; the shard must be started again from its log."""


class PushLogInUseError(RuntimeError):
    """Another process writes this push log."""


class PushLogMismatchError(ValueError):
    """The push log is sound but belongs to another shard or cluster, or lacks the positions asked for."""


class CheckpointNotBegunError(RuntimeError):
    """The shard takes no such checkpoint: it was started again since, or another one was begun. The checkpoint itself
    may well be complete; the shard's push log stays as long as it is until the next one is committed."""


class CorruptPushLogError(ValueError):
    """Bytes of the push log are not what was written; the disk of this shard counts as gone.

    file, offset: where the record or header starts that does not fit its checksum.
    """

    def __init__(self, file: str, offset: int, reason: str) -> None:
        self.file, self.offset = file, offset
        super().__init__(f"push log {file}, offset {offset}: {reason}")
