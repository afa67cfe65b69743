"""gRPC settings that server and clients must agree on."""

from __future__ import annotations

from .chunks import CHUNK_BYTES, LARGE_BYTES

# A message up to LARGE_BYTES plus its small fields; larger ones go in chunks, so nobody has to tune this.
MAX_MESSAGE_BYTES = LARGE_BYTES + CHUNK_BYTES

Options = list[tuple[str, int | str]]


def server_options() -> Options:
    """Of a server. Port sharing is off: a second server on the port fails at its start and takes no calls."""
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_ping_interval_without_data_ms", 5_000),
        ("grpc.http2.max_ping_strikes", 0),
    ]


def client_options() -> Options:
    """Of a client. Idle connections are probed, so that a peer that vanished is noticed between calls."""
    return [
        ("grpc.max_send_message_length", MAX_MESSAGE_BYTES),
        ("grpc.max_receive_message_length", MAX_MESSAGE_BYTES),
        ("grpc.keepalive_time_ms", 20_000),
        ("grpc.keepalive_timeout_ms", 10_000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.max_pings_without_data", 0),
        ("grpc.enable_retries", 0),
        ("grpc.initial_reconnect_backoff_ms", 100),
        ("grpc.min_reconnect_backoff_ms", 100),
        ("grpc.max_reconnect_backoff_ms", 2_000),
        ("grpc.use_local_subchannel_pool", 1),
    ]
