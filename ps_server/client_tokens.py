"""Push tokens for mutations that belong to no work unit: (client, incarnation, sequence)."""

from __future__ import annotations

import itertools
import secrets

from ..embedding.store import PushToken

CLIENT_LEASE = 1 << 63
"""Leases of work units stay below; an incarnation has this bit, so the two kinds of token never fence each other."""


class ClientTokens:
    """Tokens of one client, never the same twice.

    Thread safety: any thread may ask for the next token; a shard carries a client's tokens out in order, so callers
    that must not be taken for duplicates ask and send under one lock (the stores' lane).
    """

    def __init__(self, client: int | None = None, incarnation: int = 0) -> None:
        self.client = secrets.randbits(64) if client is None else client
        self._lease = CLIENT_LEASE | incarnation
        self._sequence = itertools.count()

    def next(self) -> PushToken:
        """The next token: same client and incarnation, sequence one higher."""
        return PushToken(self.client, self._lease, next(self._sequence))


def is_client_token(token: PushToken) -> bool:
    """Whether the token names a client's mutation rather than a batch of a work unit."""
    return token.lease >= CLIENT_LEASE
