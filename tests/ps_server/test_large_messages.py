"""Messages beyond 2^31 bytes: cut, announced and taken apart without one byte lost; their memory is sparse."""

import mmap

import numpy as np
import pytest

from embershard.embedding.store import PushToken
from embershard.ps_server import chunks
from embershard.ps_server import parameter_server_pb2 as pb
from embershard.ps_server.errors import RequestTooLargeError, WireFormatError
from embershard.ps_server.message_fields import read_array, read_chunk, split_message
from embershard.ps_server.snapshot_wire import decode_restore

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


def field(number, size):
    """Tag and length of a field of bytes."""
    out, value = bytearray(), size
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    tag = number << 3 | 2
    return bytes((tag,) if tag < 0x80 else (tag & 0x7F | 0x80, tag >> 7)) + bytes(out) + bytes((value,))


def test_tablet_beyond_2_31_bytes_is_read_from_its_message():
    """2^31 bytes of weights and the rest beside; only the last value is not zero."""
    dim, rows = 4096, (1 << 31) // 4 // 4096 + 1
    plain = pb.Rows(table="wide", dtype="float32", dim=dim).SerializeToString()
    sizes = {16: rows * 8, 19: rows * 4, 20: rows * 4, 21: rows * 4, 17: rows * dim * 4}
    inner = len(plain) + sum(len(field(number, size)) + size for number, size in sizes.items())
    numbers = pb.TabletSnapshot(tablet=3, tablet_bits=2, version=5).SerializeToString()
    outer = len(numbers) + len(field(6, inner)) + inner
    head = pb.RestoreRequest(header=pb.CallHeader(shard=7), token=pb.Token(unit=1, lease=2, batch=3))
    start = field(3, outer) + numbers + field(6, inner) + plain
    begin = head.SerializeToString()
    ahead = len(begin) + len(start) + inner - len(plain) - rows * dim * 4
    gap = -ahead % 8 + 8  # weights that are aligned are not copied
    start = begin + field(15, gap - 2) + bytes(gap - 2) + start
    memory = mmap.mmap(-1, len(start) + inner - len(plain))
    memory[: len(start)] = start
    position = len(start)
    for number, size in sizes.items():
        memory[position : position + len(field(number, size))] = field(number, size)
        position += len(field(number, size)) + size
    assert position == len(memory)
    memory[-4:] = np.float32(2.5).tobytes()
    header, token, snapshot = decode_restore(memoryview(memory))
    assert (header.shard, token) == (7, PushToken(1, 2, 3))
    assert (snapshot.tablet, snapshot.tablet_bits, snapshot.version, snapshot.since_version) == (3, 2, 5, None)
    weights = snapshot.tables["wide"].weights
    assert weights.shape == (rows, dim)
    assert weights.nbytes > 1 << 31
    assert not weights.flags.owndata
    assert weights[-1, -2:].tolist() == [0.0, 2.5]
