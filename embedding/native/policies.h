// Which keys get rows and which rows leave. Defined by policies.py and reference_plan.py.
//
// Thread safety: none; every call is about one part, guarded by its tablet's lock. Decisions are functions of the part's
// content and the push, never of insertion order or of other tablets.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "table.h"

namespace embershard {

// Of `total`, what falls to the tablet; the first tablets take the remainder.
uint64_t share(uint64_t total, size_t tablet, int tablet_bits);

// First key of a tablet: the key of its unknown row.
inline uint64_t first_key(size_t tablet, int tablet_bits) {
  return tablet_bits == 0 ? 0 : static_cast<uint64_t>(tablet) << (64 - tablet_bits);
}

// Whether a push must decide per tablet which of its new keys get rows.
inline bool needs_plan(const TableSpec& spec) {
  return spec.admission != AdmissionKind::always || spec.row_limit != 0 || !spec.trainable;
}
inline bool evicts_by_age_or_value(const TableSpec& spec) {
  return spec.ttl_seconds != 0 || spec.min_l2 > 0 || spec.min_score > 0;
}

// A key of a push whose gradient is accepted.
struct PlannedKey {
  uint64_t key;
  size_t entry;
  const float* gradient;
  uint32_t occurrences;
  uint32_t counted;  // occurrences before this push
  bool is_skipped;   // not admitted, or no room
};

struct PartPlan {
  int64_t created = 0, not_admitted = 0, over_limit = 0, evicted = 0;
};

// One part, and the version at which its rows change.
struct PartAt {
  Table& table;
  Part& part;
  size_t tablet;
  int tablet_bits;
  uint32_t version;
};

// One part in one push.
struct PlannedPart : PartAt {
  const UpdateStep& step;
  Table* unknown;                              // table of the unknown rows, or nullptr
  const std::vector<BlockPlan>* unknown_plan;
  float* scratch;                              // 3 · dim floats
};

// Makes the new rows that are admitted and have room, evicting others if the table does; marks the rest as skipped and
// trains the tablet's unknown row with them. `keys` ascend.
PartPlan plan_part(const PlannedPart& planned, std::vector<PlannedKey>& keys);

struct Room {
  size_t rows;
  int64_t evicted;
};

// How many of `wanted` new rows the part has room for, after evicting rows other than those of `keys` (ascending) if the
// table does. The caller trims the erased keys when its new rows are made.
Room make_room(const PartAt& at, const std::vector<uint64_t>& keys, size_t wanted);

// Whether a ttl, min_l2 or score policy lets the row go. `weights` holds dim floats.
bool is_expired(const Table& table, uint32_t row, uint32_t now, float* scratch);

// Takes the row of `key` out and remembers it for deltas; false if there is none.
bool remove_row(const Table& table, Part& part, uint64_t key, uint32_t version);

// Forgets a part's erased keys when there are too many; true if it did.
bool trim_erased(Part& part);

}  // namespace embershard
