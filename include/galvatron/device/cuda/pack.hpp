// Adjacent elements that a thread reads or writes at once: kept as the words that they are read in, in as few
// registers, and taken apart only where elements are used. What is read of several places is asked for before any of it
// is looked at, so that a thread waits for memory once.
#pragma once

#include <bit>
#include <cstdint>
#include <type_traits>

#include <galvatron/device/cuda/block.hpp>
#include <galvatron/device/kernels/number.hpp>

namespace galvatron::device::cuda {

/// `n` adjacent elements, of 16 bytes together or less.
template <class T, int n = 16 / static_cast<int>(sizeof(T))>
struct alignas(n * sizeof(T)) Pack {
  static constexpr int size = n;
  static constexpr int bytes = n * static_cast<int>(sizeof(T));
  static_assert(bytes <= 16 && std::has_single_bit(static_cast<unsigned>(bytes)));
  static_assert(std::endian::native == std::endian::little, "galvatron: packs are of little-endian machines");
  using Word =
      std::conditional_t<bytes % 4 == 0, std::uint32_t, std::conditional_t<bytes == 2, std::uint16_t, std::uint8_t>>;
  Word words[bytes / sizeof(Word)];

  /// The elements from an address on that is a multiple of a pack's bytes.
  GALVATRON_KERNEL static Pack at(const T* from) {
#if defined(__CUDA_ARCH__)
    using Vector = std::conditional_t<bytes == 16, uint4, std::conditional_t<bytes == 8, uint2, Word>>;
    return std::bit_cast<Pack>(*reinterpret_cast<const Vector*>(from));
#else
    return std::bit_cast<Pack>(*reinterpret_cast<const Elements*>(from));
#endif
  }
  GALVATRON_KERNEL void store(T* to) const {
#if defined(__CUDA_ARCH__)
    // As one integer: of a vector the compiler sometimes stores every word by itself.
    if constexpr (bytes == 16)
      *reinterpret_cast<unsigned __int128*>(to) = pair(2) << 64 | pair(0);
    else if constexpr (bytes == 8)
      *reinterpret_cast<std::uint64_t*>(to) = pair(0);
    else
      *reinterpret_cast<Word*>(to) = words[0];
#else
    *reinterpret_cast<Elements*>(to) = std::bit_cast<Elements>(*this);
#endif
  }

  GALVATRON_KERNEL T operator[](int j) const {
    if constexpr (sizeof(T) > sizeof(Word))
      return std::bit_cast<T>(std::uint64_t{words[2 * j]} | std::uint64_t{words[2 * j + 1]} << 32);
    else if constexpr (sizeof(T) == sizeof(Word))
      return std::bit_cast<T>(words[j]);
    else
      return std::bit_cast<T>(static_cast<Bits>(words[j / per_word] >> shift(j)));
  }
  /// Element j as a float.
  GALVATRON_KERNEL float get(int j) const {
    if constexpr (std::is_same_v<T, bfloat16> && n > 1)  // one instruction each
      return std::bit_cast<float>(j % 2 == 0 ? words[j / 2] << 16 : words[j / 2] & 0xffff0000U);
    else
      return kernels::get((*this)[j]);
  }
  GALVATRON_KERNEL void set(int j, T value) {
    if constexpr (sizeof(T) > sizeof(Word)) {
      const auto bits = std::bit_cast<std::uint64_t>(value);
      words[2 * j] = static_cast<Word>(bits);
      words[2 * j + 1] = static_cast<Word>(bits >> 32);
    } else if constexpr (sizeof(T) == sizeof(Word)) {
      words[j] = std::bit_cast<Word>(value);
    } else {
      const Word others = words[j / per_word] & ~(Word{static_cast<Bits>(~Bits{0})} << shift(j));
      words[j / per_word] = others | Word{std::bit_cast<Bits>(value)} << shift(j);
    }
  }
  /// Floats, rounded as kernels::put rounds them.
  GALVATRON_KERNEL static Pack of(const float (&values)[n]) {
    Pack out{};
    if constexpr (std::is_same_v<T, bfloat16> && n > 1) {
      for (int j = 0; j < n; j += 2) out.words[j / 2] = kernels::two_rounded(values[j], values[j + 1]);
    } else {
      for (int j = 0; j < n; ++j) {
        T element;
        kernels::put(element, values[j]);
        out.set(j, element);
      }
    }
    return out;
  }
  /// The same of value(j) for every j.
  GALVATRON_KERNEL static Pack of(const auto& value) {
    float values[n];
    GALVATRON_UNROLL
    for (int j = 0; j < n; ++j) values[j] = value(j);
    return of(values);
  }

 private:
  using Bits = std::conditional_t<sizeof(T) == 1, std::uint8_t,
                                  std::conditional_t<sizeof(T) == 2, std::uint16_t, std::uint32_t>>;
#if defined(__CUDA_ARCH__)
  // Words j and j + 1, in their registers: of shifts the compiler would make arithmetic of 64 bits.
  GALVATRON_KERNEL std::conditional_t<bytes == 16, unsigned __int128, std::uint64_t> pair(int j) const {
    std::uint64_t both = 0;
    asm("mov.b64 %0, {%1, %2};" : "=l"(both) : "r"(words[j]), "r"(words[j + 1]));
    return both;
  }
#else
  struct alignas(bytes) Elements {
    T values[n];
  };
#endif
  static constexpr int per_word = sizeof(T) < sizeof(Word) ? static_cast<int>(sizeof(Word) / sizeof(T)) : 1;
  GALVATRON_KERNEL static constexpr int shift(int j) { return j % per_word * 8 * static_cast<int>(sizeof(T)); }
};

/// True when runs of `count` elements from these addresses on can be read pack by pack.
template <class T, class... P>
constexpr bool is_packed(std::int64_t count, const P*... addresses) {
  return count % Pack<T>::size == 0 && ((reinterpret_cast<std::uintptr_t>(addresses) % 16 == 0) && ...);
}

/// The pack in which `size` elements are read: all of them, or 16 bytes.
template <class T, int size>
using PackOf = Pack<T, size * sizeof(T) < 16 ? size : Pack<T>::size>;

/// True when `size` elements from each of these addresses on, and from any `size` further, can be read at once.
template <int size, class... P>
constexpr bool are_aligned(const P*... addresses) {
  return ((reinterpret_cast<std::uintptr_t>(addresses) % alignof(PackOf<P, size>) == 0) && ...);
}

/// `size` adjacent elements as floats, and back.
template <int size, class T>
GALVATRON_KERNEL void get_elements(const T* from, float (&to)[size]) {
  using Part = PackOf<T, size>;
  Part parts[size / Part::size];
  for (int p = 0; p < size / Part::size; ++p) parts[p] = Part::at(from + p * Part::size);
  for (int j = 0; j < size; ++j) to[j] = parts[j / Part::size].get(j % Part::size);
}
template <int size, class T>
GALVATRON_KERNEL void put_elements(T* to, const float (&from)[size]) {
  using Part = PackOf<T, size>;
  for (int first = 0; first < size; first += Part::size) {
    float part[Part::size];
    for (int j = 0; j < Part::size; ++j) part[j] = from[first + j];
    Part::of(part).store(to + first);
  }
}

/// What a row has from an address on: `left` elements, none where that is not above 0.
template <class T>
struct RestOfRow {
  const T* at;
  std::int64_t left;
};

/// packs[i] = the first elements of places(i), with zeros behind a row's end. Where `packed` (is_packed of the rows)
/// a pack of which any is left is read whole, and all are asked for before the first is there.
template <class T, int size, int n>
GALVATRON_KERNEL void load_packs(bool packed, const auto& places, Pack<T, size> (&packs)[n]) {
  if (packed) {
    GALVATRON_UNROLL
    for (int i = 0; i < n; ++i) {
      const RestOfRow<T> rest = places(i);
      packs[i] = rest.left > 0 ? Pack<T, size>::at(rest.at) : Pack<T, size>{};
    }
    return;
  }
  GALVATRON_UNROLL
  for (int i = 0; i < n; ++i) {
    const RestOfRow<T> rest = places(i);
    packs[i] = {};
    for (int j = 0; j < size; ++j)
      if (j < rest.left) packs[i].set(j, rest.at[j]);
  }
}

/// The elements of a row of `count` from `first` on, with zeros behind its end.
template <int size, class T>
GALVATRON_KERNEL Pack<T, size> load_pack(const T* row, std::int64_t first, std::int64_t count, bool packed) {
  Pack<T, size> packs[1];
  load_packs(packed, [&](int) { return RestOfRow<T>{row + first, count - first}; }, packs);
  return packs[0];
}

template <class T>
GALVATRON_KERNEL Pack<T> load_pack(const T* row, std::int64_t first, std::int64_t count, bool packed) {
  return load_pack<Pack<T>::size>(row, first, count, packed);
}

/// Writes what of a pack is within the row.
template <class T, int size>
GALVATRON_KERNEL void store_pack(const Pack<T, size>& pack, T* row, std::int64_t first, std::int64_t count,
                                 bool packed) {
  if (packed) return pack.store(row + first);
  for (int j = 0; j < size; ++j)
    if (first + j < count) row[first + j] = pack[j];
}

}  // namespace galvatron::device::cuda
