"""Push log: what was acknowledged comes back to the bit; what is torn or damaged is said, never guessed."""

import errno

import numpy as np
import pytest
from push_log_folders import MemoryFolder
from small_disk import small_disk

from embershard.embedding.store import PushToken
from embershard.embedding.table_group import TableKeys, UpdateStep
from embershard.ps_server.errors import (
    CorruptPushLogError,
    PushLogFailedError,
    PushLogFullError,
    PushLogInUseError,
    PushLogMismatchError,
)
from embershard.ps_server.mutation import ApplyPush, CompleteUnit, DropTable
from embershard.ps_server.push_log_files import DiskFolder
from embershard.ps_server.push_log_format import (
    RECORD_HEADER_BYTES,
    SEGMENT_HEADER_BYTES,
    LogIdentity,
    RecordHeader,
    segment_name,
)
from embershard.ps_server.push_log_reader import PushLogReader
from embershard.ps_server.push_log_writer import LogLimits, PushLogWriter

WHO = LogIdentity(shard=2, cluster=77, tablet_bits=2)
SMALL = LogLimits(segment_bytes=600)
FIRST = segment_name(0)


def open_log(folder, **options):
    return PushLogWriter(folder, WHO, generation=1, **options)


def push(batch, keys=3):
    key = np.arange(keys, dtype=np.uint64)
    gradients = np.random.default_rng(batch).standard_normal(keys, np.float32)
    return ApplyPush(
        PushToken(5, 1, batch),
        TableKeys.of("user", key),
        gradients,
        np.ones(keys, np.uint32),
        UpdateStep(step=batch + 1),
        np.ones(4, np.bool_),
        np.zeros(4, np.bool_),
    )


def written(count, folder=None, **options):
    """A folder with the log of `count` pushes, left as by a kill."""
    folder = folder or MemoryFolder()
    log = open_log(folder, **options)
    for batch in range(count):
        log.wait_durable(log.append(push(batch)))
    return folder


def read(folder, since=None):
    """Reader at its end, and the batches of the pushes."""
    reader = PushLogReader(folder, WHO)
    records = list(reader.records(since))
    assert [position for position, _ in records] == list(range(reader.end - len(records), reader.end))
    for _, record in records:
        expected = push(record.token.batch)
        assert record.gradients.tobytes() == expected.gradients.tobytes()
        assert record.step == expected.step
    return reader, [record.token.batch for _, record in records]


@pytest.mark.parametrize("durability", ["log", "fsync"])
def test_records_come_back_in_order_over_segments_and_restarts(durability):
    folder = MemoryFolder()
    for start in range(0, 30, 10):
        log = open_log(folder, end=start, durability=durability, limits=SMALL)
        for batch in range(start, start + 10):
            end = log.append(push(batch))
            log.wait_durable(end)
            assert end == batch + 1 == log.end
    assert len(folder.names()) > 3
    reader, batches = read(folder)
    assert batches == list(range(30))
    assert (reader.first, reader.end, reader.torn) == (0, 30, None)
    for since in (0, 1, 9, 10, 11, 29, 30):
        assert read(folder, since)[1] == list(range(since, 30))
    with pytest.raises(PushLogMismatchError, match="position 31, got one that ends at 30"):
        read(folder, 31)


def test_files_on_a_disk_hold_the_same_bytes_as_files_in_memory(tmp_path):
    disk, memory = DiskFolder(tmp_path / "log"), MemoryFolder()
    for folder in (disk, memory):
        log = open_log(folder, durability="fsync", limits=SMALL)
        for batch in range(5):
            log.wait_durable(log.append(push(batch, keys=1 + 40 * batch)))
        log.append(DropTable("user"))
        log.close()
    assert {name: (tmp_path / "log" / name).read_bytes() for name in disk.names()} == memory.copy()
    assert len(list(PushLogReader(disk, WHO).records())) == 6


def test_file_replaced_on_a_full_disk_stays_as_it_was_and_nothing_of_the_new_one_is_left(tmp_path):
    with small_disk(tmp_path / "disk", "64k") as disk:
        folder = DiskFolder(disk)
        folder.replace("base.json", b"old")
        with pytest.raises(OSError, match="No space left on device"):
            folder.replace("base.json", bytes(1 << 17))
        assert (folder.names(), (disk / "base.json").read_bytes()) == (["base.json"], b"old")


def test_record_of_many_buffers_is_written_whole(tmp_path):
    folder = DiskFolder(tmp_path)
    file = folder.create("file")
    buffers = [bytes([index % 251]) * (index % 7) for index in range(3000)]
    file.write(3, buffers)
    assert file.read(3, 100_000).tobytes() == b"".join(buffers)
    file.close()


def test_golden_bytes_of_a_segment_with_one_record():
    folder = MemoryFolder()
    log = open_log(folder, end=9)
    log.wait_durable(log.append(CompleteUnit(1 << 63)))
    data = folder.copy()[segment_name(9)]
    assert data.hex(" ", 8) == GOLDEN
    assert (SEGMENT_HEADER_BYTES, RECORD_HEADER_BYTES) == (72, 48)


GOLDEN = (
    "454d4253504c4f47 0100000002000000 0200000000000000 4d00000000000000 0100000000000000 "
    "0900000000000000 cbbf2f9c390ed2e3 0a00000000000000 721e622c39342f12 4c5052430a000000 "
    "0900000000000000 3000000000000000 8ad457e8c997951c 8b923f80e59b0615 ee87efdd73c225a2 "
    "2800000000000000 7b22756e6974223a 3932323333373230 3336383534373735 3830382c22617272 "
    "617973223a5b5d7d"
)


@pytest.mark.parametrize("durability", ["log", "fsync"])
def test_tail_torn_at_every_byte_of_an_unacknowledged_record_is_cut_off_and_said(durability):
    folder = written(2, durability=durability)
    last = len(folder.copy()[FIRST])
    whole = written_but_for_the_last(3, durability).copy()[FIRST]
    for size in range(last, len(whole) + 1):
        torn = MemoryFolder({FIRST: whole[:size]})
        reader, batches = read(torn)
        if size in (last, len(whole)):
            assert reader.torn is None
            assert len(batches) == (2 if size == last else 3)
            continue
        assert batches == [0, 1]
        assert (reader.torn.file, reader.torn.offset, reader.torn.size) == (FIRST, last, size - last)
        assert "cut short" in str(reader.torn)
        reader.cut_torn_tail()
        open_log(torn, end=2).append(push(2))
        assert read(torn)[1] == [0, 1, 2]


def written_but_for_the_last(count, durability):
    """A log whose last record was appended, but not acknowledged, before the kill."""
    folder = MemoryFolder()
    log = open_log(folder, durability=durability)
    for batch in range(count):
        end = log.append(push(batch))
        if batch < count - 1:
            log.wait_durable(end)
    return folder


@pytest.mark.parametrize("durability", ["log", "fsync"])
def test_acknowledged_record_that_lost_its_end_is_refused_by_name(durability):
    whole = written(3, durability=durability).copy()[FIRST]
    for size in range(SEGMENT_HEADER_BYTES, len(whole)):
        with pytest.raises(CorruptPushLogError, match=FIRST) as error:
            read(MemoryFolder({FIRST: whole[:size]}))
        assert error.value.offset <= size


@pytest.mark.parametrize("durability", ["log", "fsync"])
def test_bit_flipped_in_an_unacknowledged_record_loses_no_more_than_it(durability):
    whole = written_but_for_the_last(3, durability).copy()[FIRST]
    last = len(written(2).copy()[FIRST])
    for offset in range(last, len(whole)):
        damaged = bytearray(whole)
        damaged[offset] ^= 1 << (offset % 8)
        reader, batches = read(MemoryFolder({FIRST: damaged}))
        assert batches == [0, 1]
        assert reader.torn.offset == last


def test_segment_torn_at_every_byte_of_its_header_is_removed_and_said():
    folder = written(2)
    header = written(0).copy()[FIRST]
    second = segment_name(2)
    for data in [header[:size] for size in range(len(header))] + [bytes(500)]:
        torn = MemoryFolder({**folder.copy(), second: data})
        reader, batches = read(torn)
        assert (batches, reader.end, reader.torn.file, reader.torn.offset) == ([0, 1], 2, second, 0)
        reader.cut_torn_tail()
        assert torn.names() == [FIRST]


@pytest.mark.parametrize("durability", ["log", "fsync"])
def test_bit_flipped_anywhere_in_acknowledged_bytes_is_refused_by_name(durability):
    files = written(6, limits=SMALL, durability=durability).copy()
    assert len(files) == 3
    flips = 0
    for name, data in files.items():
        for offset in range(len(data)):
            damaged = bytearray(data)
            damaged[offset] ^= 1 << (offset % 8)
            with pytest.raises(CorruptPushLogError) as error:
                read(MemoryFolder({**files, name: damaged}))
            assert name in str(error.value)
            assert error.value.offset <= offset
            flips += 1
    assert flips > 1000


def test_missing_segment_and_segment_cut_short_in_the_middle_are_refused_by_name():
    files = written(6, limits=SMALL).copy()
    names = sorted(files)
    with pytest.raises(CorruptPushLogError, match=names[0]):
        read(MemoryFolder({name: data for name, data in files.items() if name != names[1]}))
    for size in (0, 50, SEGMENT_HEADER_BYTES, len(files[names[1]]) - 1):
        with pytest.raises(CorruptPushLogError, match=names[1]):
            read(MemoryFolder({**files, names[1]: files[names[1]][:size]}))


def test_zeros_behind_the_last_record_are_a_torn_tail():
    data = written(2).copy()[FIRST]
    reader, batches = read(MemoryFolder({FIRST: data + bytes(5000)}))
    assert batches == [0, 1]
    assert (reader.torn.offset, reader.torn.size) == (len(data), 5000)


def test_unsynced_record_that_lost_bytes_with_the_machine_is_a_torn_tail_a_synced_one_is_refused():
    folder = written(2, durability="fsync")
    log = open_log(folder, end=2, durability="fsync")
    log.wait_durable(log.append(push(2)))
    synced = len(folder.copy()[segment_name(2)])
    log.append(push(3))
    log.append(push(4))
    files = folder.copy()
    data = bytearray(files[segment_name(2)])
    data[synced + 100 : synced + 140] = bytes(40)
    reader, batches = read(MemoryFolder({**files, segment_name(2): data}))
    assert batches == [0, 1, 2]
    assert reader.torn.offset == synced
    with pytest.raises(CorruptPushLogError, match="record 2: a record is cut short"):
        read(MemoryFolder({**files, segment_name(2): data[:-1][: synced - 1]}))


def test_log_of_another_shard_cluster_or_width_is_refused():
    folder = written(1)
    for other in (LogIdentity(1, 77, 2), LogIdentity(2, 78, 2), LogIdentity(2, 77, 8)):
        with pytest.raises(PushLogMismatchError, match="LogIdentity"):
            PushLogReader(folder, other)


def test_record_moved_to_another_place_is_refused():
    folder = written(2)
    data = folder.copy()[FIRST]
    size = (len(data) - SEGMENT_HEADER_BYTES) // 2
    first, second = data[SEGMENT_HEADER_BYTES:][:size], data[SEGMENT_HEADER_BYTES + size :]
    assert RecordHeader.unpack(second[:RECORD_HEADER_BYTES]).position == 1
    with pytest.raises(CorruptPushLogError, match="expected record 0, got record 1"):
        read(MemoryFolder({FIRST: data[:SEGMENT_HEADER_BYTES] + second + first}))


@pytest.mark.parametrize("error", [errno.ENOSPC, errno.EDQUOT])
@pytest.mark.parametrize("durability", ["log", "fsync"])
def test_full_disk_refuses_the_record_at_every_byte_and_goes_on_when_there_is_room(durability, error):
    size = len(written(1).copy()[FIRST]) - SEGMENT_HEADER_BYTES
    for room in range(0, size, 3):
        folder = written(2, durability=durability)
        before = folder.copy()
        log = open_log(folder, end=2, durability=durability)
        log.wait_durable(log.append(push(2)))
        kept = folder.copy()
        folder.room, folder.error = room, error
        with pytest.raises(PushLogFullError, match="no room for record 3") as refusal:
            log.append(push(3))
        assert refusal.value.errno == error
        assert segment_name(2) in str(refusal.value)
        assert folder.copy() == kept
        assert log.end == 3
        assert set(before) < set(kept)
        folder.room = None
        log.wait_durable(log.append(push(3)))
        assert read(folder)[1] == [0, 1, 2, 3]


def test_full_disk_at_a_new_segment_refuses_the_record_and_goes_on_when_there_is_room():
    folder = MemoryFolder()
    log = open_log(folder, limits=LogLimits(segment_bytes=100))
    log.append(push(0))
    for room in range(SEGMENT_HEADER_BYTES):
        folder.room = room
        with pytest.raises(PushLogFullError):
            log.append(push(1))
        assert folder.names() == [FIRST]
    folder.room = None
    log.append(push(1))
    assert read(folder)[1] == [0, 1]


def test_disk_error_stops_the_log_and_nothing_is_called_durable_after_it():
    folder = MemoryFolder()
    log = open_log(folder, durability="fsync")
    log.wait_durable(log.append(push(0)))
    end = log.append(push(1))
    folder.fails_sync = True
    for _ in range(2):
        with pytest.raises(PushLogFailedError, match="injected"):
            log.wait_durable(end)
        folder.fails_sync = False  # a second sync would succeed and mean nothing
    log.wait_durable(1)
    with pytest.raises(PushLogFailedError):
        log.append(push(2))
    assert read(folder)[1] == [0, 1]


def test_refused_record_that_cannot_be_taken_back_stops_the_log():
    folder = MemoryFolder()
    log = open_log(folder)
    log.append(push(0))
    folder.room, folder.fails_truncate = 30, True
    with pytest.raises(PushLogFailedError, match="injected"):
        log.append(push(1))
    folder.room, folder.fails_truncate = None, False
    with pytest.raises(PushLogFailedError):
        log.append(push(1))
    reader, batches = read(folder)
    assert (batches, reader.torn.size) == ([0], 30)


def test_one_sync_makes_all_records_before_it_durable():
    folder = MemoryFolder()
    log = open_log(folder, durability="fsync")
    ends = [log.append(push(batch)) for batch in range(4)]
    before = folder.syncs
    for end in reversed(ends):
        log.wait_durable(end)
    assert folder.syncs == before + 1
    assert log.append(push(4)) == 5


@pytest.mark.parametrize("durability", ["log", "fsync"])
@pytest.mark.parametrize("synced", [False, True])
def test_rewound_record_leaves_no_trace(durability, synced):
    folder = MemoryFolder()
    log = open_log(folder, durability=durability)
    log.wait_durable(log.append(push(0)))
    end = log.append(push(99))
    if synced:
        log.wait_durable(end)
    log.rewind(end)
    assert log.end == 1
    with pytest.raises(ValueError, match="position 1 behind the last record"):
        log.rewind(end)
    assert read(folder)[1] == [0]
    log.wait_durable(log.append(push(1)))
    assert read(folder)[1] == [0, 1]


def test_trim_removes_what_a_checkpoint_makes_unneeded_and_nothing_else():
    folder = MemoryFolder()
    log = open_log(folder, limits=LogLimits(segment_bytes=600, log_bytes=1500))
    for batch in range(12):
        log.append(push(batch))
    assert log.wants_checkpoint
    assert log.size_bytes == sum(len(data) for data in folder.copy().values())
    before = len(folder.names())
    log.trim(5)
    assert len(folder.names()) < before
    assert 0 < log.first <= 5
    assert read(folder, 5)[1] == list(range(5, 12))
    with pytest.raises(PushLogMismatchError, match="position 0, got one that begins at"):
        read(folder, 0)
    log.trim(12)
    assert (log.first, log.end, len(folder.names())) == (12, 12, 1)
    assert not log.wants_checkpoint
    log.append(push(12))
    assert read(folder)[1] == [12]
    with pytest.raises(ValueError, match="up to the log's end 13, got 14"):
        log.trim(14)


def test_second_writer_on_one_folder_is_refused_and_named(tmp_path):
    with (
        DiskFolder(tmp_path).lock(),
        pytest.raises(PushLogInUseError, match="got process"),
        DiskFolder(tmp_path).lock(),
    ):
        pass
    with DiskFolder(tmp_path).lock():
        pass


def test_records_found_at_a_start_are_on_the_disk_before_anything_is_acknowledged():
    folder = written_but_for_the_last(3, "fsync")
    assert len(folder.files[FIRST].synced) < len(folder.files[FIRST].data)
    log = open_log(folder, end=3, durability="fsync")
    log.wait_durable(3)
    assert folder.files[FIRST].synced == bytes(folder.files[FIRST].data)
