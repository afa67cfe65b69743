"""Deliberate faults in the row layer, each with the test that must turn red with it.

A mutant replaces one piece of source that stands in its file exactly once.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Mutant:
    """file: below the repository's root.   search, replace: source text.   killed_by: a test's node id in tests/."""

    name: str
    file: str
    search: str
    replace: str
    killed_by: str

    @property
    def is_native(self) -> bool:
        """Whether the extension must be built again."""
        return self.file.endswith((".cpp", ".h"))


INDEX = "embedding/test_row_index.py::"
CASES = "embedding/test_policy_cases.py::"
CONTRACT = "embedding/test_table_group.py::"
TORCH = "embedding/test_torch_parity.py::"
CLICKS = "embedding/test_click_scores.py::"
DRAWS = "embedding/test_initializers.py::"
TWIN = "embedding/test_native_against_reference.py::"

CROWDED = INDEX + "test_keys_that_crowd_a_bucket_are_found_erased_and_put_back"
DROPPED = INDEX + "test_rows_of_a_dropped_tablet_serve_others_one_at_a_time"
BITES = INDEX + "test_eviction_in_small_bites_visits_every_row_once"
GROWING = INDEX + "test_old_and_new_keys_of_a_push_into_growing_parts_are_each_updated_once"
DELTA = CONTRACT + "test_base_and_delta_rebuild_an_equal_group"

MUTANTS = (
    # --- index of a part ---
    Mutant(
        "probe not wrapped",
        "embedding/native/part.h",
        "return bucket + 1 == buckets_ + bucket_count_ ? buckets_ : bucket + 1;",
        "return bucket + 1 == buckets_ + bucket_count_ ? bucket : bucket + 1;",
        CROWDED,
    ),
    Mutant(
        "passed bucket not marked",
        "embedding/native/part.cpp",
        "buckets[at].is_passed = 1;",
        "",
        CROWDED,
    ),
    Mutant(
        "mark of a passed bucket taken off too early",
        "embedding/native/part.cpp",
        "open = bucket.is_passed && pull_back(at, slot);",
        "open = false, bucket.is_passed = 0;",
        CROWDED,
    ),
    Mutant(
        "erasing keeps the last key of the bucket",
        "embedding/native/part.cpp",
        "    bucket.keys[slot] = bucket.keys[bucket.taken];\n",
        "",
        CROWDED,
    ),
    Mutant(
        "eviction goes on behind the next row",
        "embedding/native/part.h",
        "if (key_hash >= hash && home_of",
        "if (key_hash > hash && home_of",
        BITES,
    ),
    # --- finder of a request's rows ---
    Mutant(
        "index that moved not noticed",
        "embedding/native/row_finder.h",
        "    if (block.moves != moves_) start(block);\n",
        "",
        GROWING,
    ),
    Mutant(
        "key that passed its home not looked for behind it",
        "embedding/native/row_finder.h",
        "      block.rows[at] = part_of(block, at).find(block.keys[at]);\n",
        "",
        CROWDED,
    ),
    # --- reading rows ---
    Mutant(
        "lookup takes a key that passed its home for absent",
        "embedding/native/kernels_rows_body.h",
        "        row = &passed;\n",
        "        row = nullptr;\n",
        CROWDED,
    ),
    Mutant(
        "rows after an absent key move up by one",
        "embedding/native/kernels_rows_body.h",
        "copy_row(reinterpret_cast<char*>(out + i * dim), row, bytes);",
        "copy_row(reinterpret_cast<char*>(out + (i - absent_count) * dim), row, bytes);",
        TWIN + "test_every_optimizer_initializer_and_row_type_gives_the_same_bits",
    ),
    # --- row memory ---
    Mutant(
        "free list not cleared with the tablet",
        "embedding/native/part.cpp",
        "  free_row_ = kNoRow;\n  extras_.reset();",
        "  extras_.reset();",
        DROPPED,
    ),
    Mutant(
        "open run kept when its tablet is dropped",
        "embedding/native/part.cpp",
        "bucket_count_ = rows_ = run_next_ = run_end_ = 0;",
        "bucket_count_ = rows_ = 0;",
        DROPPED,
    ),
    Mutant(
        "split run handed out twice",
        "embedding/native/row_store.cpp",
        "free_[larger].push_back(RowRun{run.first + run.count, run.count});",
        "free_[larger].push_back(RowRun{run.first, run.count});",
        DROPPED,
    ),
    Mutant(
        "state not reset on reuse",
        "embedding/native/table.cpp",
        "    kernels_.start_state(block, weights + block.column, state + block.state_column);\n",
        "",
        CASES + "test_b30_a_key_that_evicts_another_inherits_nothing[native-optimizer0]",
    ),
    Mutant(
        "count not reset on reuse",
        "embedding/native/table.cpp",
        "  *counters = RowCounters{0, 0, 0};\n",
        "",
        CONTRACT + "test_b30_erased_rows_come_back_with_fresh_weights_state_and_count[native]",
    ),
    # --- tablets and requests ---
    Mutant(
        "wrong tablet: low bits of the key",
        "embedding/native/tablet.h",
        "static_cast<size_t>((key >> 1) >> (63 - tablet_bits))",
        "static_cast<size_t>(key & ((uint64_t{1} << tablet_bits) - 1))",
        CONTRACT + "test_mask_leaves_other_tablets_alone[native]",
    ),
    Mutant(
        "duplicate check stops before the last key",
        "embedding/native/duplicate_finder.h",
        "for (size_t i = 0; i < n; ++i) {\n      const uint64_t key = keys[i];",
        "for (size_t i = 0; i + 1 < n; ++i) {\n      const uint64_t key = keys[i];",
        INDEX + "test_a_duplicate_is_found_at_any_two_places",
    ),
    Mutant(
        "duplicate check forgets the first key",
        "embedding/native/duplicate_finder.h",
        "while (slots[slot] >= base) {",
        "while (slots[slot] > base) {",
        INDEX + "test_a_duplicate_is_found_at_any_two_places",
    ),
    Mutant(
        "duplicate filter keeps the second of two keys only",
        "embedding/native/duplicate_finder.h",
        "kept += (filter[at / 64] >> (at % 64)) & 1;",
        "kept += kept < count && suspects_[kept] == i;",
        "embedding/test_duplicate_keys.py::test_one_key_twice_is_named_and_nothing_is_done",
    ),
    Mutant(
        "count wraps around",
        "embedding/native/table.h",
        "return sum < a ? UINT32_MAX : sum;",
        "return sum;",
        CONTRACT + "test_count_adds_occurrences_and_saturates[native]",
    ),
    Mutant(
        "writers of a tablet side by side",
        "embedding/native/tablet_lock.h",
        "pthread_rwlock_wrlock(&lock_)",
        "pthread_rwlock_rdlock(&lock_)",
        "embedding/test_concurrent_verbs.py::test_b18_pushers_of_the_same_rows_lose_no_update",
    ),
    # --- admission and eviction ---
    Mutant(
        "erased key not recorded",
        "embedding/native/policies.cpp",
        "  part.extras().erased.set(key, version);\n",
        "",
        DELTA + "[native]",
    ),
    Mutant(
        "erased key still erased after it came back",
        "embedding/native/table.cpp",
        "extras->erased.erase(key);",
        "extras->erased.size();",
        DELTA + "[native]",
    ),
    Mutant(
        "admitted key keeps its counter",
        "embedding/native/policies.cpp",
        "extras->admission.erase(key.key);",
        "extras->admission.size();",
        CASES + "test_b32_occurrences_counted_so_far_survive_a_restart[native]",
    ),
    Mutant(
        "occurrences before admission forgotten",
        "embedding/native/policies.cpp",
        "->count = key.counted;",
        "->count = 0;",
        CASES + "test_b32_occurrences_counted_so_far_survive_a_restart[native]",
    ),
    Mutant(
        "hole left in the map of counters",
        "embedding/native/key_map.h",
        "if (((slot - home(keys_[slot])) & mask) >= ((slot - hole) & mask)) {",
        "if (false) {",
        INDEX + "test_counters_of_other_keys_survive_an_admission",
    ),
    Mutant(
        "least frequent row chosen by age",
        "embedding/native/policies.cpp",
        "CapacityOrder::lru ? counters->touched_at : counters->count",
        "CapacityOrder::lru ? counters->count : counters->touched_at",
        CASES + "test_b29_a_key_in_a_freed_row_starts_to_count_anew[native]",
    ),
    Mutant(
        "row leaves one second late",
        "embedding/native/policies.cpp",
        "age >= spec.ttl_seconds",
        "age > spec.ttl_seconds",
        BITES,
    ),
    Mutant(
        "capacity makes room for one row too many",
        "embedding/native/policies.cpp",
        "if (part.rows() + wanted <= quota) return {wanted, 0};",
        "if (part.rows() + wanted <= quota + 1) return {wanted, 0};",
        CASES + "test_b29_a_key_in_a_freed_row_starts_to_count_anew[native]",
    ),
    Mutant(
        "assigned rows find room always",
        "embedding/native/table_assign.cpp",
        "if (room.rows == 0) {",
        "if (room.rows == SIZE_MAX) {",
        CASES + "test_b28_assigned_rows_without_room_are_not_set[native]",
    ),
    Mutant(
        "assigned rows get the state of another key",
        "embedding/native/table_assign.cpp",
        "partition_.entries[entry].position - static_cast<size_t>(request_.splits[block.table_index]);",
        "i;",
        TWIN + "test_large_assigns_over_tables_with_and_without_limit_and_masks_are_the_same[True-False-1]",
    ),
    Mutant(
        "halves streamed as floats",
        "embedding/native/table_assign.cpp",
        "streams_.push_back(table.is_float32() && table.store.streams_weights());",
        "streams_.push_back(table.store.streams_weights());",
        TWIN + "test_rows_of_tables_larger_than_caches_are_set_alike[bfloat16-512]",
    ),
    Mutant(
        "weights of large tables streamed to the row before",
        "embedding/native/table_assign.cpp",
        "stream_lines(reinterpret_cast<float*>(table.store.weights(row)), weights, block.value_bytes);",
        "stream_lines(reinterpret_cast<float*>(table.store.weights(row - (row != 0))), weights, block.value_bytes);",
        TWIN + "test_rows_of_tables_larger_than_caches_are_set_alike[float32-256]",
    ),
    Mutant(
        "old rows of a full table assigned in spite of if_absent",
        "embedding/native/table_assign.cpp",
        "partition_.skipped[entry] = !is_new && given_.if_absent;",
        "partition_.skipped[entry] = 0;",
        TWIN + "test_large_assigns_over_tables_with_and_without_limit_and_masks_are_the_same[False-True-1]",
    ),
    Mutant(
        "occurrences not thrown for one by one",
        "embedding/native/policies.cpp",
        "integer_power(1.0 - spec.admission_probability, occurrences)",
        "integer_power(1.0 - spec.admission_probability, 1)",
        TWIN + "TestTwinMachine::runTest",
    ),
    # --- clicks ---
    Mutant(
        "clicks not cleared on reuse",
        "embedding/native/table.cpp",
        "  if (spec.keeps_clicks()) *store.clicks(counters) = 0;\n",
        "",
        CLICKS + "test_a_key_in_a_freed_row_starts_without_clicks[native]",
    ),
    Mutant(
        "clicks of the first keys of a block, whichever were written",
        "embedding/native/table_push.cpp",
        "entries[writes.count] = entry;",
        "entries[i] = entry;",
        CLICKS + "test_clicks_go_to_their_rows_past_refused_and_held_back_keys[native]",
    ),
    Mutant(
        "table threads go on though another one found a key twice",
        "embedding/native/key_partition.cpp",
        "return failure_ == nullptr;",
        "return true;",
        "embedding/test_duplicate_keys.py::test_one_key_twice_is_named_and_nothing_is_done[places0-8192-2]",
    ),
    Mutant(
        "clicks read in the partition's order",
        "embedding/native/table_push.cpp",
        "clicks_[partition_.entries[entries[i]].position]",
        "clicks_[entries[i]]",
        CLICKS + "test_masked_tablets_count_no_clicks[native]",
    ),
    Mutant(
        "clicked occurrences are shows as well",
        "embedding/native/policies.cpp",
        "table.spec.show_weight * (seen - clicked)",
        "table.spec.show_weight * seen",
        CLICKS + "test_rows_leave_below_the_score_of_their_shows_and_clicks[native]",
    ),
    Mutant(
        "clicks of a snapshot not taken in",
        "embedding/native/table_tablets.cpp",
        "view.clicks == nullptr ? 0 : view.clicks[i]",
        "0",
        CLICKS + "test_clicks_survive_a_restart_and_a_delta[native]",
    ),
    Mutant(
        "reference: clicks of the whole push counted for the rows of one tablet",
        "embedding/reference.py",
        "table.add_clicks(self._rows(table, keys[positions]), clicks[positions])",
        "table.add_clicks(self._rows(table, keys[positions]), clicks[: len(positions)])",
        CLICKS + "test_clicks_go_to_their_rows_past_refused_and_held_back_keys[reference]",
    ),
    # --- kernels ---
    Mutant(
        "same rounding at every push",
        "embedding/native/table.cpp",
        "mix64(stream(key) + (uint64_t{count} << 32))",
        "mix64(stream(key))",
        TWIN + "test_every_optimizer_initializer_and_row_type_gives_the_same_bits",
    ),
    Mutant(
        "blocks of a row draw the same weights",
        "embedding/native/kernels_body.h",
        "stream + (static_cast<uint64_t>(block.column) + 1) * kGolden",
        "stream + kGolden",
        DRAWS + "test_b77_seed_key_space_and_column_each_change_the_draw",
    ),
    Mutant(
        "rmsprop forgets its weight on the new square",
        "embedding/native/kernels_body.h",
        "const float v = alpha * s[c] + (rest * g[c]) * g[c];",
        "const float v = alpha * s[c] + g[c] * g[c];",
        TORCH + "test_rmsprop_is_torchs_on_touched_rows",
    ),
    # --- the NumPy definition and what both share ---
    Mutant(
        "gradient cursor not advanced on a refused key",
        "embedding/reference.py",
        "self._step_rows(table, keys[positions], gradients[positions], occurrences[positions], step)",
        "self._step_rows(table, keys[positions], gradients[: len(positions)], occurrences[positions], step)",
        CONTRACT + "test_b59_non_finite_gradients_refuse_their_row_only[reference]",
    ),
    Mutant(
        "reference: erased key still erased after it came back",
        "embedding/reference_table.py",
        "        self.parts[tablet].erased.pop(key, None)\n",
        "",
        DELTA + "[reference]",
    ),
    Mutant(
        "reference: mean squared instead of square averaged",
        "embedding/optimizers.py",
        "state[:, 0] + sum_of_squares(g) / np.float32(w.shape[1])",
        "state[:, 0] + (g.sum(axis=1) / np.float32(w.shape[1])) ** 2",
        CASES + "test_b33_rowwise_adagrad_takes_the_mean_of_squares[reference]",
    ),
    Mutant(
        "reference: bias corrected by the request's step always",
        "embedding/optimizers.py",
        "steps.astype(np.int64) if by_row else",
        "np.full(len(steps), step.push.step, np.int64) if by_row else",
        CASES + "test_b16_bias_correction_counts_the_steps_it_says[reference-row-1]",
    ),
    Mutant(
        "reference: touched rows make room",
        "embedding/reference_plan.py",
        "            if key not in touched\n",
        "",
        TWIN + "TestTwinMachine::runTest",
    ),
    Mutant(
        "quantiles wrong in the tails",
        "embedding/initializers.py",
        "(6.6579051150e00, 3.0812263860e00",
        "(6.6679051150e00, 3.0812263860e00",
        DRAWS + "test_quantiles_are_the_normal_ones",
    ),
    Mutant(
        "vector from a file given to the next key",
        "embedding/init_vectors.py",
        "weights[known] = self.vectors[at[known]]",
        "weights[known] = self.vectors[at[known] - 1]",
        DRAWS + "test_init_from_gives_its_keys_their_vectors_and_others_the_initializer",
    ),
)
