"""Messages beyond 2^31 bytes: cut, announced and taken apart without one byte lost; their memory is sparse."""

import mmap

import numpy as np
import pytest

from embershard.ps_server import chunks
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server.errors import RequestTooLargeError, WireFormatError
from embershard.ps_server.message_fields import read_array, read_chunk, split_message

BEYOND = (1 << 31) + 4096


@pytest.fixture
def message():
    """An exchange whose gradients alone are longer than 2^31 bytes, all zero but for the last one."""
    head = pb.ExchangeRequest(compression="NONE", header=pb.CallHeader(shard=7)).SerializeToString()
    tag = bytes((17 << 3 & 0x7F | 2 | 0x80, 17 >> 4))
    length = bytes((BEYOND >> shift & 0x7F) | (0x80 if shift < 28 else 0) for shift in range(0, 35, 7))
    start = head + tag + length
    memory = mmap.mmap(-1, len(start) + BEYOND)
    memory[: len(start)] = start
    memory[-4:] = np.float32(2.5).tobytes()
    return memoryview(memory)


def test_array_beyond_2_31_bytes_is_found_in_its_message(message):
    small, fields = split_message(message, pb.ExchangeRequest())
    assert small.header.shard == 7
    assert len(fields[17]) == BEYOND
    assert np.frombuffer(fields[17][-4:], np.float32).tolist() == [2.5]
    assert len(read_array({17: fields[17][: BEYOND // 8 * 8]}, 17, np.dtype(np.uint8), "gradients")) == BEYOND
    short = len(message) - 1
    with pytest.raises(WireFormatError, match=f"expected field 17 of ExchangeRequest to end by byte {short}"):
        split_message(message[:short], pb.ExchangeRequest())


def test_message_beyond_2_31_bytes_goes_in_chunks_and_none_is_lost(message):
    total = pieces = 0
    last = b""
    for number, chunk in enumerate(chunks.cut(message, "Exchange")):
        small, data = read_chunk(chunk)
        assert (small.method, small.total_bytes) == (("Exchange", len(message)) if number == 0 else ("", 0))
        assert len(data) == chunks.CHUNK_BYTES or total + len(data) == len(message)
        total, pieces, last = total + len(data), pieces + 1, bytes(data[-4:])
    assert total == len(message)
    assert pieces == -(-len(message) // chunks.CHUNK_BYTES)
    assert np.frombuffer(last, np.float32).tolist() == [2.5]


def test_announced_size_beyond_the_limit_is_refused_at_the_first_chunk(message):
    taken = []

    def stream():
        for chunk in chunks.cut(message, "Exchange"):
            taken.append(len(chunk))
            yield chunk

    with pytest.raises(RequestTooLargeError, match=f"at most {1 << 31} bytes in one call, got {len(message)}"):
        chunks.collect(stream(), 1 << 31)
    assert len(taken) == 1
