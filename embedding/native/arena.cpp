#include "arena.h"

#include <algorithm>
#include <iterator>

#include "memory_map.h"

namespace embershard {
namespace {

constexpr size_t kFirstChunk = size_t{64} << 10;
constexpr size_t kLargestChunk = size_t{64} << 20;

}  // namespace

Arena::~Arena() {
  for (auto [chunk, bytes] : chunks_) unmap_memory(chunk, bytes);
}

void* Arena::allocate(size_t bytes) {
  bytes = round_up(bytes, 64);
  std::lock_guard guard(mutex_);
  const auto found = free_by_size_.lower_bound({bytes, nullptr});
  if (found != free_by_size_.end()) {
    const auto [size, block] = *found;
    free_by_size_.erase(found);
    free_by_address_.erase(block);
    free_ -= size;
    if (size > bytes) add_free(block + bytes, size - bytes);
    return block;
  }
  if (static_cast<size_t>(end_ - cursor_) < bytes) add_chunk(bytes);
  char* block = cursor_;
  cursor_ += bytes;
  return block;
}

void Arena::deallocate(void* block, size_t bytes) {
  if (block == nullptr) return;
  std::lock_guard guard(mutex_);
  add_free(static_cast<char*>(block), round_up(bytes, 64));
}

void Arena::add_free(char* block, size_t bytes) {
  free_ += bytes;
  auto next = free_by_address_.lower_bound(block);
  if (next != free_by_address_.end() && block + bytes == next->first) {
    bytes += next->second;
    free_by_size_.erase({next->second, next->first});
    next = free_by_address_.erase(next);
  }
  if (next != free_by_address_.begin()) {
    const auto before = std::prev(next);
    if (before->first + before->second == block) {
      free_by_size_.erase({before->second, before->first});
      before->second += bytes;
      free_by_size_.emplace(before->second, before->first);
      return;
    }
  }
  free_by_address_.emplace_hint(next, block, bytes);
  free_by_size_.emplace(bytes, block);
}

void Arena::add_chunk(size_t at_least) {
  const size_t wanted = mapped_ < kHugePage ? std::max(mapped_, kFirstChunk) : std::clamp(mapped_ / 4, kHugePage, kLargestChunk);
  size_t bytes = std::max(wanted, at_least);
  bytes = round_up(bytes, bytes >= kHugePage ? kHugePage : size_t{4096});
  chunks_.reserve(chunks_.size() + 1);
  char* chunk = map_memory(bytes);
  prefer_huge_pages(chunk, chunk + bytes);
  chunks_.emplace_back(chunk, bytes);
  if (cursor_ < end_) add_free(cursor_, static_cast<size_t>(end_ - cursor_));
  cursor_ = chunk;
  end_ = chunk + bytes;
  mapped_ += bytes;
}

size_t Arena::free_bytes() const {
  std::lock_guard guard(mutex_);
  return free_;
}

}  // namespace embershard
