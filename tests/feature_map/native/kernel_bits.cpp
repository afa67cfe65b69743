// One number made from the bits of every vectorised kernel's results; equal for every instruction set it is built for.
#include <bit>
#include <cstdio>
#include <random>
#include <string>
#include <vector>

#include "../../../feature_map/native/mix_kernels.h"
#include "../../../feature_map/native/numbers.h"
#include "../../../feature_map/native/values.h"

using namespace embershard;

int main() {
  std::mt19937_64 draw(11);
  const int64_t count = 20011;
  uint64_t sum = 0xcbf29ce484222325ULL;
  const auto fold = [&](uint64_t bits) { sum = (sum ^ bits) * 0x100000001b3ULL; };

  std::vector<double> x(count);
  for (double& value : x) {
    do value = std::bit_cast<double>(draw());
    while (!(value - value == 0.0));  // every finite pattern
  }
  for (size_t i = 0; i < x.size(); i += 2) x[i] = static_cast<double>(static_cast<int64_t>(draw() % 20000)) / 7 - 500;
  using Kind = NumberStep::Kind;
  const std::vector<std::vector<NumberStep>> chains = {
      {{Kind::log1p, 0, 0}}, {{Kind::signed_log1p, 0, 0}}, {{Kind::clip, -3, 9}, {Kind::affine, 0.7, 1.0 / 3}}};
  for (const auto& steps : chains) {
    std::vector<double> y = x;
    apply_steps(steps, count, y.data());
    for (const double value : y) fold(std::bit_cast<uint64_t>(value));
  }

  std::vector<uint64_t> a(count), b(count), keys(count);
  for (int64_t i = 0; i < count; ++i) a[i] = draw(), b[i] = draw();
  mix_keys(a.data(), 5, count, keys.data());
  mix_into(b.data(), count, keys.data());
  for (const uint64_t key : keys) fold(key);
  mix_pairs(a.data(), b.data(), 5, count, b.data());
  for (int64_t i = 0; i < count; ++i)
    if (keys[i] != b[i]) return 1;

  std::string bytes;
  std::vector<int32_t> ends{0};
  for (int64_t i = 0; i < count; ++i) {
    for (uint64_t n = draw() % (i % 256 < 200 ? 16 : 60); n > 0; --n) bytes += static_cast<char>(draw());
    ends.push_back(static_cast<int32_t>(bytes.size()));
  }
  const void* buffers[] = {nullptr, ends.data(), bytes.data()};
  ArrowArray array{};
  array.length = count, array.n_buffers = 3, array.buffers = buffers;
  ArrowSchema schema{};
  schema.format = "u", schema.name = "text";
  std::vector<uint8_t> valid(count);
  read_hashes(view_column(schema, array, 0, count), IdKind::text, {}, 0, count, keys.data(), valid.data());
  for (const uint64_t key : keys) fold(key);
  std::printf("%016llx\n", static_cast<unsigned long long>(sum));
  return 0;
}
