// A growable array of plain values that starts uninitialised and can hand its memory over to NumPy.
#pragma once

#include <cstdint>
#include <cstring>
#include <type_traits>
#include <utility>

#include "memory_pool.h"

namespace embershard {

// memcpy that may be given null pointers for nothing.
template <typename T>
void copy_values(T* to, const T* from, int64_t count) {
  if (count > 0) std::memcpy(to, from, static_cast<size_t>(count) * sizeof(T));
}

template <typename T>
class Buffer {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  Buffer() = default;
  explicit Buffer(int64_t size) { resize(size); }
  Buffer(Buffer&& other) noexcept { swap(other); }
  Buffer& operator=(Buffer&& other) noexcept {
    swap(other);
    return *this;
  }
  Buffer(const Buffer&) = delete;
  Buffer& operator=(const Buffer&) = delete;
  ~Buffer() { pool_free(data_); }

  T* data() { return data_; }
  const T* data() const { return data_; }
  int64_t size() const { return size_; }
  bool empty() const { return size_ == 0; }
  T& operator[](int64_t i) { return data_[i]; }
  const T& operator[](int64_t i) const { return data_[i]; }

  void clear() { size_ = 0; }
  void reserve(int64_t capacity) {
    if (capacity <= capacity_) return;
    T* grown = static_cast<T*>(pool_allocate(static_cast<size_t>(capacity) * sizeof(T)));
    if (size_ > 0) std::memcpy(grown, data_, static_cast<size_t>(size_) * sizeof(T));
    pool_free(data_);
    data_ = grown;
    capacity_ = static_cast<int64_t>(pool_capacity(grown) / sizeof(T));
  }
  // New elements are uninitialised.
  void resize(int64_t size) {
    reserve(size);
    size_ = size;
  }
  // Room for `count` more elements, uninitialised, and where they start.
  T* extend(int64_t count) {
    resize(size_ + count);
    return data_ + size_ - count;
  }
  void push_back(T value) { *extend(1) = value; }
  void fill(T value) {
    for (int64_t i = 0; i < size_; ++i) data_[i] = value;
  }

  // The memory, to be given back with pool_free; the buffer is empty afterwards.
  T* release() {
    T* memory = data_;
    data_ = nullptr;
    size_ = capacity_ = 0;
    return memory;
  }

 private:
  void swap(Buffer& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(size_, other.size_);
    std::swap(capacity_, other.capacity_);
  }

  T* data_ = nullptr;
  int64_t size_ = 0;
  int64_t capacity_ = 0;
};

}  // namespace embershard
