// Memory that is reused between batches: fresh pages cost more than hashing into them.
#pragma once

#include <cstddef>

namespace embershard {

// At least `bytes` of uninitialised memory, aligned to 64; throws std::bad_alloc. Thread-safe, as is pool_free.
void* pool_allocate(size_t bytes);
// Gives memory of pool_allocate back; null does nothing.
void pool_free(void* memory) noexcept;
// Bytes of the block that holds `memory`.
size_t pool_capacity(const void* memory) noexcept;

}  // namespace embershard
