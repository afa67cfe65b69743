#include "text_hashes.h"

#include <array>

#include "clones.h"
#include "murmur3.h"

namespace embershard {
namespace {

constexpr int64_t kBlock = 256;

struct MurmurBlock {
  std::array<uint64_t, kBlock> h1, h2, k1, k2, length;
};

EMBERSHARD_CLONES void finish_block(const MurmurBlock& block, int64_t count, uint64_t* h) {
  for (int64_t i = 0; i < count; ++i)
    h[i] = murmur3_finish(block.h1[i], block.h2[i], block.k1[i], block.k2[i], block.length[i]);
}

struct ShortTexts {
  std::array<uint64_t, kBlock> k1, k2, length;
};

// Bytes of the first and the second word that belong to a text of this length.
struct TailMasks {
  std::array<uint64_t, 16> low, high;
};

constexpr TailMasks make_tail_masks() {
  TailMasks masks{};
  for (unsigned length = 0; length < 16; ++length) {
    masks.low[length] = length >= 8 ? ~uint64_t{0} : (uint64_t{1} << (8 * length)) - 1;
    masks.high[length] = length > 8 ? (uint64_t{1} << (8 * (length - 8))) - 1 : 0;
  }
  return masks;
}

constexpr TailMasks kTailMasks = make_tail_masks();

EMBERSHARD_CLONES void finish_short_block(const ShortTexts& block, int64_t count, uint64_t* h) {
  for (int64_t i = 0; i < count; ++i) h[i] = murmur3_finish(0, 0, block.k1[i], block.k2[i], block.length[i]);
}

// Texts shorter than 16 bytes are all tail: two words each, masked.
template <typename Offset>
void hash_short_run(const OffsetText<Offset>& access, int64_t start, int64_t count, uint64_t* h) {
  ShortTexts block;
  for (int64_t i = 0; i < count; ++i) {
    const Text text = access.at(start + i);
    block.k1[i] = load_u64(text.data) & kTailMasks.low[text.size];
    block.k2[i] = load_u64(text.data + 8) & kTailMasks.high[text.size];
    block.length[i] = text.size;
  }
  finish_short_block(block, count, h);
}

}  // namespace

template <typename Access>
void hash_texts(const Access& access, int64_t start, int64_t count, uint64_t* h) {
  MurmurBlock block;
  for (int64_t done = 0; done < count; done += kBlock) {
    const int64_t n = std::min(kBlock, count - done);
    if constexpr (requires { access.is_short_run(start, n); }) {
      if (access.is_short_run(start + done, n)) {
        hash_short_run(access, start + done, n, h + done);
        continue;
      }
    }
    for (int64_t i = 0; i < n; ++i) {
      const int64_t slot = start + done + i;
      const Text text = access.at(slot);
      const MurmurState state = murmur3_begin(text.data, text.size, access.readable_end(slot));
      block.h1[i] = state.h1;
      block.h2[i] = state.h2;
      block.k1[i] = state.k1;
      block.k2[i] = state.k2;
      block.length[i] = state.length;
    }
    finish_block(block, n, h + done);
  }
}

template void hash_texts(const OffsetText<int32_t>&, int64_t, int64_t, uint64_t*);
template void hash_texts(const OffsetText<int64_t>&, int64_t, int64_t, uint64_t*);
template void hash_texts(const FixedText&, int64_t, int64_t, uint64_t*);
template void hash_texts(const ViewText&, int64_t, int64_t, uint64_t*);

}  // namespace embershard
