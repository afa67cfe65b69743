"""Shard: tokens, fencing, ownership, staleness and tablets, on rows one can count."""

import subprocess
import sys

import numpy as np
import pytest
from dictionary_tables import DictionaryTables, same_snapshot
from hypothesis import given, settings
from hypothesis import strategies as st

from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import ColumnBlock, MinCount, TableConfig, unknown_table
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.client_tokens import ClientTokens
from embershard.ps_server.errors import GenerationError, WrongShardError
from embershard.ps_server.mutation import (
    AdoptMap,
    CompleteUnit,
    DropTablet,
    EnsureTables,
    ImportTablet,
    RaiseLowestLease,
)
from embershard.ps_server.shard import Shard, StalenessLimit

KEYS = TableKeys.of("user", [1, (1 << 62) + 1, (2 << 62) + 1, (3 << 62) + 1])  # one in each of four tablets
TABLE = TableConfig(name="user", blocks=(ColumnBlock(dim=1),))


def make_shard(**options):
    shard = Shard(DictionaryTables(), **options)
    shard.apply(EnsureTables((TABLE,)))
    return shard


def push(unit, lease, batch, keys=KEYS, gradient=1.0, **options):
    ones = np.ones(len(keys.keys), np.uint32)
    gradients = np.full(len(keys.keys), gradient, np.float32)
    return Push(PushToken(unit, lease, batch), keys, gradients, ones, 1, 1, 0, **options)


def mask(*tablets):
    flags = np.zeros(4, np.bool_)
    flags[list(tablets)] = True
    return flags


def carry_out(shard, request, tablets=None):
    decision = shard.decide(request, tablets)
    return shard.push_report(decision, shard.apply_push(decision))


def values(shard):
    return shard.read(Pull(KEYS)).values.tolist()


def test_push_repeated_after_timeout_is_applied_once_b50():
    shard = make_shard()
    for batch in range(300):
        report = shard.exchange(push(7, 1, batch), None).report
        assert (report.applied, report.duplicate) == (4, 0)
        if batch % 3 == 0:
            report = shard.exchange(push(7, 1, batch), None).report
            assert (report.applied, report.duplicate, report.tables) == (0, 4, {})
    assert values(shard) == [-300.0] * 4


def test_push_of_an_older_batch_is_a_duplicate():
    shard = make_shard()
    shard.exchange(push(7, 1, 5), None)
    assert shard.exchange(push(7, 1, 4), None).report.duplicate == 4


def test_lower_lease_is_fenced_and_higher_lease_goes_on_where_the_unit_stands():
    shard = make_shard()
    shard.exchange(push(7, 1, 0), None)
    shard.exchange(push(7, 2, 1), None)
    assert shard.exchange(push(7, 1, 2), None).report.fenced == 4
    assert shard.exchange(push(7, 2, 1), None).report.duplicate == 4
    assert shard.exchange(push(7, 2, 2), None).report.applied == 4
    assert values(shard) == [-3.0] * 4


def test_units_do_not_know_each_other():
    shard = make_shard()
    shard.exchange(push(7, 9, 5), None)
    assert shard.exchange(push(8, 1, 0), None).report.applied == 4


def test_part_of_a_push_for_one_tablet_leaves_the_others_open():
    shard = make_shard()
    part = TableKeys.of("user", KEYS.keys[1:2])
    assert carry_out(shard, push(7, 1, 0, part), mask(1)).applied == 1
    report = carry_out(shard, push(7, 1, 0))
    assert (report.applied, report.duplicate, report.tables["user"].applied) == (3, 1, 3)
    assert values(shard) == [-1.0] * 4


def test_push_with_keys_outside_its_tablets_changes_nothing():
    shard = make_shard()
    with pytest.raises(ValueError, match="expected keys inside the 1 tablets of the push, got 3 outside"):
        shard.decide(push(7, 1, 0), mask(2))
    assert shard.exchange(push(7, 1, 0), None).report.applied == 4


def test_tablet_that_is_not_owned_is_refused_by_name_and_nothing_changes():
    shard = make_shard(owned=mask(0, 2), epoch=6)
    for call in (
        lambda: shard.read(Pull(KEYS)),
        lambda: shard.decide(push(7, 1, 0)),
        lambda: shard.decide(push(7, 1, 0), mask(0, 1, 2, 3)),
        lambda: shard.decide_erase(ClientTokens().next(), KEYS),
    ):
        with pytest.raises(WrongShardError, match="map epoch 6, got tablets 1, 3") as caught:
            call()
        assert caught.value.tablets == (1, 3)
    with pytest.raises(WrongShardError, match="got tablets 3"):
        shard.snapshot(3)
    mine = TableKeys.of("user", KEYS.keys[::2])
    assert shard.exchange(push(7, 1, 0, mine), Pull(mine)).rows.values.tolist() == [-1.0, -1.0]


def test_completed_unit_is_forgotten_and_its_late_pushes_are_fenced():
    shard = make_shard()
    shard.exchange(push(7, 1, 0), None)
    shard.apply(CompleteUnit(7))
    assert shard.remembered_units == 0
    assert shard.exchange(push(7, 1, 0), None).report.fenced == 4
    assert values(shard) == [-1.0] * 4


def test_lowest_lease_forgets_units_below_and_fences_what_comes_late():
    shard = make_shard()
    shard.exchange(push(7, 3, 0), None)
    shard.exchange(push(8, 5, 0), None)
    shard.apply(RaiseLowestLease(5))
    assert shard.remembered_units == 1
    assert shard.exchange(push(7, 3, 1), None).report.fenced == 4
    assert shard.exchange(push(8, 5, 1), None).report.applied == 4
    own = Push(ClientTokens().next(), KEYS, np.ones(4, np.float32), np.ones(4, np.uint32), 1, 1, 0)
    assert shard.exchange(own, None).report.applied == 4


def test_other_generation_is_refused():
    shard = make_shard(generation=3)
    shard.check_generation(3)
    with pytest.raises(GenerationError, match="expected generation 3, got 2"):
        shard.check_generation(2)
    shard.apply(AdoptMap(mask(0), 9, 4))
    shard.check_generation(4)
    assert (shard.epoch, shard.owned.tolist()) == (9, [True, False, False, False])


def test_stale_part_is_refused_once_then_accepted_with_the_smaller_rate():
    shard = make_shard(staleness=StalenessLimit(1, 0.5))
    pulled = shard.read(Pull(KEYS)).pushes
    one = TableKeys.of("user", KEYS.keys[1:2])
    for batch in range(2):
        carry_out(shard, push(1, 1, batch, one), mask(1))
    stale = push(7, 1, 0, seen_pushes=pulled)
    report = shard.exchange(stale, None).report
    assert (report.applied, report.stale, report.duplicate) == (3, 1, 0)
    waiting = shard.exchange(push(7, 1, 1), None).report
    assert (waiting.applied, waiting.stale) == (3, 1), "a later batch must not overtake the refused one"
    report = shard.exchange(stale, None).report
    assert (report.stale, report.duplicate) == (1, 3), "a repeated call is not a recomputed batch"
    report = shard.exchange(push(7, 1, 0, seen_pushes=pulled, recomputed=True), None).report
    assert (report.applied, report.duplicate, report.stale) == (1, 3, 0)
    assert shard.exchange(push(7, 1, 1), None).report.applied == 1
    assert values(shard) == [-2.0, -2.0 - 0.5 - 1.0, -2.0, -2.0]


def test_batches_behind_a_stale_one_come_again_in_their_order_and_none_is_lost():
    shard = make_shard(staleness=StalenessLimit(1, 1.0))
    pulled = shard.read(Pull(KEYS)).pushes
    one = TableKeys.of("user", KEYS.keys[1:2])
    for batch in range(2):
        carry_out(shard, push(1, 1, batch, one), mask(1))
    for batch in range(3):
        assert shard.exchange(push(7, 1, batch, seen_pushes=pulled), None).report.stale >= 1
    again = {"seen_pushes": shard.read(Pull(KEYS)).pushes, "recomputed": True}
    assert shard.exchange(push(7, 1, 0, **again), None).report.stale == 0
    later = shard.exchange(push(7, 1, 3, seen_pushes=again["seen_pushes"]), None).report
    assert later.stale >= 1, "batches 1 and 2 have not come again yet"
    for batch in (1, 2, 3):
        assert shard.exchange(push(7, 1, batch, **again), None).report.stale == 0
    assert shard.exchange(push(7, 1, 4), None).report.applied == 4
    assert values(shard) == [-5.0, -7.0, -5.0, -5.0]


def test_new_lease_does_not_wait_for_what_an_older_one_was_refused():
    shard = make_shard(staleness=StalenessLimit(0, 1.0))
    pulled = shard.read(Pull(KEYS)).pushes
    shard.exchange(push(1, 1, 0), None)
    for batch in range(3):
        assert shard.exchange(push(7, 1, batch, seen_pushes=pulled), None).report.stale == 4
    for batch in range(4):
        assert shard.exchange(push(7, 2, batch), None).report.applied == 4
    assert shard.exchange(push(7, 1, 2, recomputed=True), None).report.fenced == 4


def test_fresh_rows_are_not_stale():
    shard = make_shard(staleness=StalenessLimit(0))
    for batch in range(3):
        pulled = shard.read(Pull(KEYS)).pushes
        assert shard.exchange(push(7, 1, batch, seen_pushes=pulled), None).report.applied == 4


def test_tablet_moves_with_its_applied_memory():
    donor, receiver = make_shard(), make_shard(owned=mask())
    donor.exchange(push(7, 2, 4), None)
    snapshot = donor.snapshot(1)
    receiver.apply(ImportTablet(snapshot))
    donor.apply(DropTablet(1))
    one = TableKeys.of("user", KEYS.keys[1:2])
    with pytest.raises(WrongShardError):
        donor.decide(push(7, 2, 5, one))
    assert carry_out(receiver, push(7, 2, 4, one)).duplicate == 1
    assert carry_out(receiver, push(7, 1, 5, one)).fenced == 1
    assert carry_out(receiver, push(7, 2, 5, one)).applied == 1
    assert receiver.read(Pull(one)).values.tolist() == [-2.0]
    assert same_snapshot(donor.snapshot(0), donor.snapshot(0))


def test_tablet_that_moves_between_refusal_and_second_try_still_waits_for_it():
    limit = StalenessLimit(1, 0.5)
    donor, receiver = make_shard(staleness=limit), make_shard(owned=mask(), staleness=limit)
    pulled = donor.read(Pull(KEYS)).pushes
    one = TableKeys.of("user", KEYS.keys[1:2])
    for batch in range(2):
        carry_out(donor, push(1, 1, batch, one), mask(1))
    for batch in range(3):
        assert carry_out(donor, push(7, 1, batch, one, seen_pushes=pulled), mask(1)).stale == 1
    snapshot = donor.snapshot(1)
    receiver.apply(ImportTablet(snapshot))
    assert same_snapshot(receiver.snapshot(1), snapshot)
    assert carry_out(receiver, push(7, 1, 3, one), mask(1)).stale == 1, "it must not overtake batches 0 to 2"
    for batch in range(3):
        assert carry_out(receiver, push(7, 1, batch, one, recomputed=True), mask(1)).applied == 1
        waiting = carry_out(receiver, push(7, 1, 4, one), mask(1)).stale
        assert waiting == 1, f"batches {batch + 1} to 4 have not come again"
    for batch in (3, 4):
        assert carry_out(receiver, push(7, 1, batch, one, recomputed=True), mask(1)).applied == 1
    assert carry_out(receiver, push(7, 1, 5, one), mask(1)).applied == 1
    donor.apply(DropTablet(1))
    donor.apply(ImportTablet(receiver.snapshot(1)))
    assert carry_out(donor, push(7, 1, 5, one), mask(1)).duplicate == 1


def test_table_of_unknown_rows_takes_no_push_no_assignment_and_no_erasure():
    shard = make_shard()
    table = TableConfig(name="item", blocks=(ColumnBlock(dim=1),), admission=MinCount(count=2), unseen="unknown_row")
    shard.apply(EnsureTables((table, unknown_table(table))))
    aimed = TableKeys.of("item/unknown", KEYS.keys)
    with pytest.raises(ValueError, match="got 'item/unknown': it holds the unknown rows of table 'item'"):
        shard.decide(push(1, 1, 0, aimed))
    ones = np.ones(4, np.float32)
    with pytest.raises(ValueError, match="got 'item/unknown'"):
        shard.decide_assign(ClientTokens().next(), aimed, ones, None, if_absent=False, now=0)
    with pytest.raises(ValueError, match="got 'item/unknown'"):
        shard.decide_erase(ClientTokens().next(), aimed)
    assert shard.read(Pull(aimed)).values.tolist() == [0.0] * 4
    own = TableConfig(name="own/unknown", blocks=(ColumnBlock(dim=1),))
    shard.apply(EnsureTables((own,)))
    assert carry_out(shard, push(1, 1, 0, TableKeys.of("own/unknown", KEYS.keys))).applied == 4


def test_assign_and_erase_under_one_token_are_carried_out_once():
    shard, tokens = make_shard(), ClientTokens(client=1)
    token = tokens.next()
    set_rows = lambda: shard.decide_assign(token, KEYS, np.full(4, 2.0, np.float32), None, if_absent=False, now=0)  # noqa: E731
    assert shard.apply(set_rows()) == 4
    shard.exchange(push(7, 1, 0), None)
    assert set_rows() is None, "a repeated assign must not undo the push"
    token = tokens.next()
    assert shard.apply(shard.decide_erase(token, KEYS)) == 4
    assert shard.decide_erase(token, KEYS) is None


def test_clients_are_remembered_up_to_a_bound():
    shard = make_shard()
    for client in range(5000):
        shard.apply(shard.decide_erase(ClientTokens(client).next(), KEYS))
    assert len(shard.snapshot(0).applied.unit) == 4096


def test_replaying_the_mutations_gives_the_same_tablets():
    shard, log = make_shard(staleness=StalenessLimit(1, 0.25)), []
    pulled = shard.read(Pull(KEYS)).pushes
    for batch in range(5):
        for repeated in (False, True):
            decision = shard.decide(push(7, 1, batch, seen_pushes=pulled, recomputed=repeated))
            shard.apply_push(decision)
            log += [decision.mutation] if decision.mutation else []
    replayed = make_shard()
    for mutation in log:
        replayed.apply(mutation)
    assert all(same_snapshot(shard.snapshot(tablet), replayed.snapshot(tablet)) for tablet in range(4))


@settings(max_examples=60, deadline=None)
@given(
    st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 3), st.integers(0, 4), st.sets(st.integers(0, 3), min_size=1)),
        max_size=40,
    )
)
def test_no_order_of_calls_applies_a_batch_twice(calls):
    """Against a plain restatement of the rule: per tablet and unit, leases and batches only grow."""
    shard = make_shard()
    leases, batches, expected = {}, {}, [0] * 4
    for unit, lease, batch, tablets in calls:
        part = TableKeys.of("user", [KEYS.keys[tablet] for tablet in sorted(tablets)])
        report = carry_out(shard, push(unit, lease, batch, part), mask(*tablets))
        applied = 0
        for tablet in tablets:
            place = (unit, tablet)
            if lease >= leases.get(place, 0) and batch > batches.get(place, -1):
                leases[place], batches[place] = lease, batch
                expected[tablet] += 1
                applied += 1
        assert report.applied == applied
        assert report.applied + report.duplicate + report.fenced == len(tablets)
    assert values(shard) == [-float(count) for count in expected]


def test_load_counts_keys_of_each_tablet():
    shard = make_shard(load_sampling=1)
    shard.exchange(push(7, 1, 0), Pull(TableKeys.of("user", KEYS.keys[:2])))
    load = shard.load()
    assert load.pushed_keys.tolist() == [1, 1, 1, 1]
    assert load.pulled_keys.tolist() == [1, 1, 0, 0]
    assert load.pushes.tolist() == [1, 1, 1, 1]


OUT_OF_MEMORY = """
import resource, sys
import numpy as np
from embershard.embedding.store import Pull, Push, PushToken
from embershard.embedding.table_config import ColumnBlock, Sgd, TableConfig, Zeros
from embershard.embedding.table_group import TableKeys
from embershard.ps_server.errors import HalfChangedError
from embershard.ps_server.local_store import LocalStore

store = LocalStore(4, 2)
store.ensure_tables([TableConfig(name="t", blocks=(ColumnBlock(dim=64, initializer=Zeros(), optimizer=Sgd(lr=1.0)),))])
random = np.random.default_rng(0)

def push(batch, n):
    keys = TableKeys.of("t", random.integers(0, 1 << 64, n, np.uint64))
    return Push(PushToken(1, 1, batch), keys, np.ones(n * 64, np.float32), np.ones(n, np.uint32), 1, 1, 0)

store.exchange(push(0, 1000), None)
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()
large = push(1, 200_000)
room = used + large.gradients.nbytes + (30 << 20)
resource.setrlimit(resource.RLIMIT_AS, (room, room))
for call in (
    lambda: store.exchange(large, None),
    lambda: store.exchange(push(2, 10), None),
    lambda: store.snapshot(3),
):
    try:
        call()
    except HalfChangedError as error:
        print(error)
    else:
        sys.exit("not refused")
print(store.exchange(None, Pull(TableKeys.of("t", large.keys.keys[:8]))).rows.values.shape)
"""


@pytest.mark.process
def test_memory_that_runs_out_in_a_push_is_told_once_and_nothing_is_built_on_half_of_it():
    """The second try of the token would apply a part of it twice, and a checkpoint would hold half a push."""
    words = [sys.executable, "-c", OUT_OF_MEMORY]
    done = subprocess.run(words, check=False, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    first, second, third, rows = done.stdout.splitlines()
    expected = (
        "expected rows that are changed whole, got a store that stopped half way in ApplyPush of 200,000 rows (tables "
        "'t'; PushToken(unit=1, lease=1, batch=1)) with MemoryError"
    )
    assert first.startswith(expected)
    assert first == second == third
    assert first.endswith("it counts as not applied; restore a checkpoint into a new store")
    assert rows == "(512,)"
