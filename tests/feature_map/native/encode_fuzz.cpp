// Random columns in buffers of exactly the size the format asks for, encoded and checked value by value. Built with
// AddressSanitizer and UndefinedBehaviorSanitizer, a read past a buffer's end or a bad shift ends the program.
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "../../../feature_map/native/mix64.h"
#include "../../../feature_map/native/murmur3.h"
#include "../../../feature_map/native/plan.h"
#include "../../../feature_map/native/faults.h"
#include "../../../feature_map/native/text_memory.h"

using namespace embershard;

namespace {

std::mt19937_64 draw(20240229);
int64_t below(int64_t n) { return static_cast<int64_t>(draw() % static_cast<uint64_t>(n)); }

#define CHECK(condition)                                                \
  do {                                                                  \
    if (!(condition)) {                                                 \
      std::printf("%s:%d: %s\n", __FILE__, __LINE__, #condition);       \
      std::exit(1);                                                     \
    }                                                                   \
  } while (false)

// An Arrow array with buffers of their own, none larger than needed.
struct Made {
  ArrowSchema schema{};
  ArrowArray array{};
  std::vector<std::unique_ptr<char[]>> memory;
  std::vector<const void*> buffers;
  std::vector<std::unique_ptr<Made>> children;
  std::vector<ArrowSchema*> child_schemas;
  std::vector<ArrowArray*> child_arrays;
  std::string name, format;

  void* add(size_t bytes) {
    memory.push_back(std::make_unique<char[]>(bytes));
    buffers.push_back(memory.back().get());
    return memory.back().get();
  }
  void finish(int64_t length, int64_t offset, int64_t null_count) {
    for (auto& child : children) {
      child_schemas.push_back(&child->schema);
      child_arrays.push_back(&child->array);
    }
    schema = {format.c_str(), name.c_str(), nullptr, 2, static_cast<int64_t>(children.size()), child_schemas.data(),
              nullptr, nullptr, nullptr};
    array = {length, null_count, offset, static_cast<int64_t>(buffers.size()), static_cast<int64_t>(children.size()),
             buffers.data(), child_arrays.data(), nullptr, nullptr, nullptr};
  }
};

// Validity of offset + rows slots in as many bytes as that takes; null where all are valid.
std::vector<bool> add_validity(Made& made, int64_t rows, int64_t offset) {
  std::vector<bool> valid(static_cast<size_t>(rows), true);
  if (below(3) == 0) {
    made.buffers.push_back(nullptr);
    return valid;
  }
  const int64_t slots = offset + rows;
  auto* bits = static_cast<uint8_t*>(made.add(static_cast<size_t>((slots + 7) / 8)));
  for (int64_t i = 0; i < (slots + 7) / 8; ++i) bits[i] = static_cast<uint8_t>(draw());
  for (int64_t i = 0; i < rows; ++i) valid[static_cast<size_t>(i)] = (bits[(offset + i) / 8] >> ((offset + i) % 8)) & 1;
  return valid;
}

struct Expected {
  std::vector<std::vector<uint64_t>> rows;  // hashes of each row
};

std::unique_ptr<Made> make_integers(int64_t rows, Expected& expected) {
  auto made = std::make_unique<Made>();
  const int64_t offset = below(20);
  const std::vector<bool> valid = add_validity(*made, rows, offset);
  const bool is_narrow = below(2) == 0;
  made->format = is_narrow ? "i" : "l";
  void* values = made->add(static_cast<size_t>((offset + rows) * (is_narrow ? 4 : 8)));
  for (int64_t i = 0; i < offset + rows; ++i) {
    const int64_t value = is_narrow ? static_cast<int32_t>(draw()) : static_cast<int64_t>(draw());
    if (is_narrow) static_cast<int32_t*>(values)[i] = static_cast<int32_t>(value);
    else static_cast<int64_t*>(values)[i] = value;
    if (i < offset) continue;
    const bool is_valid = valid[static_cast<size_t>(i - offset)];
    expected.rows.push_back({is_valid ? static_cast<uint64_t>(value) : missing_hash()});
  }
  made->finish(rows, offset, -1);
  return made;
}

std::unique_ptr<Made> make_texts(int64_t rows, Expected& expected, std::vector<std::string>& texts) {
  auto made = std::make_unique<Made>();
  const int64_t offset = below(20);
  const std::vector<bool> valid = add_validity(*made, rows, offset);
  made->format = "u";
  auto* ends = static_cast<int32_t*>(made->add(static_cast<size_t>(offset + rows + 1) * 4));
  std::string bytes;
  ends[0] = 0;
  const int64_t longest = below(2) == 0 ? 16 : 50;
  for (int64_t i = 0; i < offset + rows; ++i) {
    std::string text;
    for (int64_t c = below(longest); c > 0; --c) text += static_cast<char>(draw());
    bytes += text;
    ends[i + 1] = static_cast<int32_t>(bytes.size());
    if (i < offset) continue;
    const bool is_valid = valid[static_cast<size_t>(i - offset)];
    expected.rows.push_back({is_valid ? murmur3(text.data(), text.size()) : missing_hash()});
    if (is_valid) texts.push_back(text);
  }
  std::memcpy(made->add(bytes.size()), bytes.data(), bytes.size());
  made->finish(rows, offset, -1);
  return made;
}

std::unique_ptr<Made> make_lists(int64_t rows, Expected& expected) {
  auto made = std::make_unique<Made>();
  const int64_t offset = below(10);
  const std::vector<bool> valid = add_validity(*made, rows, offset);
  made->format = "+l";
  auto* ends = static_cast<int32_t*>(made->add(static_cast<size_t>(offset + rows + 1) * 4));
  ends[0] = static_cast<int32_t>(below(5));
  for (int64_t i = 0; i < offset + rows; ++i) ends[i + 1] = ends[i] + static_cast<int32_t>(below(4));
  Expected elements;
  const int64_t total = ends[offset + rows];
  made->children.push_back(make_integers(total, elements));
  const ArrowArray& child = made->children[0]->array;
  const auto* bits = static_cast<const uint8_t*>(child.buffers[0]);
  for (int64_t i = offset; i < offset + rows; ++i) {
    expected.rows.emplace_back();
    for (int64_t e = ends[i]; valid[static_cast<size_t>(i - offset)] && e < ends[i + 1]; ++e) {
      const int64_t bit = child.offset + e;
      if (bits == nullptr || ((bits[bit / 8] >> (bit % 8)) & 1) != 0)
        expected.rows.back().push_back(elements.rows[static_cast<size_t>(e)][0]);
    }
  }
  made->finish(rows, offset, -1);
  return made;
}

std::unique_ptr<Made> make_numbers(int64_t rows) {
  auto made = std::make_unique<Made>();
  const int64_t offset = below(20);
  add_validity(*made, rows, offset);
  made->format = "g";
  auto* values = static_cast<double*>(made->add(static_cast<size_t>(offset + rows) * 8));
  for (int64_t i = 0; i < offset + rows; ++i) {
    const uint64_t bits = draw();  // every pattern: NaN, infinities, denormals
    std::memcpy(values + i, &bits, 8);
  }
  made->finish(rows, offset, -1);
  return made;
}

FeaturePlan values_of(int column, IdKind id, uint64_t salt) {
  FeaturePlan feature;
  feature.salt = salt;
  ValueSource source;
  source.column = column;
  source.id = id;
  feature.parts.push_back(source);
  return feature;
}

void check_feature(const Encoded& encoded, size_t feature, const Expected& expected, uint64_t salt) {
  const int64_t rows = static_cast<int64_t>(expected.rows.size());
  const int64_t* offsets = encoded.offsets.data() + static_cast<int64_t>(feature) * rows;
  for (int64_t row = 0; row < rows; ++row) {
    const auto& hashes = expected.rows[static_cast<size_t>(row)];
    CHECK(offsets[row + 1] - offsets[row] == static_cast<int64_t>(hashes.size()));
    for (size_t i = 0; i < hashes.size(); ++i)
      CHECK(encoded.keys[offsets[row] + static_cast<int64_t>(i)] == mix64(hashes[i] ^ salt));
  }
}

void fuzz_once() {
  const int64_t rows = below(4) == 0 ? below(3) : below(700);
  Expected integers, texts, lists;
  std::vector<std::string> written;
  Made records;
  records.format = "+s";
  records.children.push_back(make_integers(rows, integers));
  records.children.push_back(make_texts(rows, texts, written));
  records.children.push_back(make_lists(rows, lists));
  records.children.push_back(make_numbers(rows));
  const char* names[] = {"integers", "texts", "lists", "numbers"};
  for (size_t i = 0; i < 4; ++i) {
    records.children[i]->name = names[i];
    records.children[i]->schema.name = records.children[i]->name.c_str();
  }
  records.finish(rows, 0, 0);

  PlanParts parts;
  parts.columns = {"integers", "texts", "lists", "numbers", "absent"};
  parts.is_required = {1, 1, 1, 1, 0};
  parts.features = {values_of(0, IdKind::int64, 7), values_of(1, IdKind::text, 8), values_of(2, IdKind::int64, 9)};
  FeaturePlan cross = values_of(0, IdKind::int64, 10);
  cross.kind = FeaturePlan::Kind::cross;
  cross.parts.push_back(parts.features[1].parts[0]);
  cross.parts.push_back(parts.features[2].parts[0]);
  parts.features.push_back(cross);
  NumberSource number;
  number.column = 3;
  number.has_indicator = true;
  number.steps = {{NumberStep::Kind::signed_log1p, 0, 0}, {NumberStep::Kind::affine, 0.5, 2.0}};
  parts.dense = {number, number};
  parts.dense[1].steps = {{NumberStep::Kind::clip, -5, 5}, {NumberStep::Kind::log1p, 0, 0}};
  const Plan plan(parts);
  const RecordChunk chunk{&records.schema, &records.array};

  const Encoded encoded = plan.encode({chunk});
  CHECK(encoded.size == rows);
  check_feature(encoded, 0, integers, 7);
  check_feature(encoded, 1, texts, 8);
  check_feature(encoded, 2, lists, 9);
  for (int64_t i = 0; i < encoded.dense.size(); ++i) CHECK(encoded.dense[i] - encoded.dense[i] == 0.0F);
  std::vector<std::thread> threads;  // a plan is shared by all threads, and so is the pool of buffers
  for (int t = 0; t < 2; ++t)
    threads.emplace_back([&] { CHECK(plan.encode({chunk, chunk}).keys.size() == 2 * encoded.keys.size()); });
  for (std::thread& thread : threads) thread.join();

  TextMemory memory;
  memory.add_column(view_column(records.children[1]->schema, records.children[1]->array, 0, rows),
                    parts.features[1].parts[0], 8);
  const TextMemory::Taken taken = memory.take();
  for (int64_t i = 0; i < taken.keys.size(); ++i) {
    const char* text = taken.bytes.data() + taken.offsets[i];
    CHECK(taken.keys[i] == mix64(murmur3(text, static_cast<size_t>(taken.offsets[i + 1] - taken.offsets[i])) ^ 8));
    CHECK(i == 0 || taken.keys[i - 1] < taken.keys[i]);
  }
}

void fuzz_delimited() {
  const char* pool[] = {"", "|", "a|b", "||", "a:1|b:0.5|c", ":", "a:|b", "x:nan", "+5|-7", "9999999999999999999|1", "|a|"};
  for (const char* text : pool) {
    Made records, *column = new Made;
    records.children.emplace_back(column);
    records.format = "+s";
    column->format = "U";
    column->name = "v";
    column->buffers.push_back(nullptr);
    auto* ends = static_cast<int64_t*>(column->add(16));
    ends[0] = 0;
    ends[1] = static_cast<int64_t>(std::strlen(text));
    std::memcpy(column->add(std::strlen(text)), text, std::strlen(text));
    column->finish(1, 0, 0);
    records.finish(1, 0, 0);
    for (const IdKind id : {IdKind::text, IdKind::int64, IdKind::uint64})
      for (const char* weight_delimiter : {"", ":"}) {
        PlanParts parts;
        parts.columns = {"v"};
        parts.is_required = {1};
        parts.features = {values_of(0, id, 3)};
        parts.features[0].parts[0].delimiter = "|";
        parts.features[0].parts[0].weight_delimiter = weight_delimiter;
        parts.features[0].parts[0].max_length = below(3);
        parts.features[0].parts[0].keep_null_elements = below(2) == 0;
        try {
          const Encoded encoded = Plan(parts).encode({{&records.schema, &records.array}});
          CHECK(encoded.offsets[1] == encoded.keys.size());
        } catch (const Fault& fault) {
          CHECK(fault.message.find("column 'v'") == 0);
        }
      }
  }
}

}  // namespace

int main() {
  for (int round = 0; round < 150; ++round) fuzz_once();
  for (int round = 0; round < 20; ++round) fuzz_delimited();
  std::printf("sound\n");
  return 0;
}
