// poly127-4k: the 128-bit name of a block of GPU data, a keyed universal hash over GF(p), p =
// 2^127-1.
//
// The key is k_0 ... k_511 and r, all below p. A block of L bytes is padded with zeros to n pieces
// of 4096 bytes, and each piece read as 512 little-endian 64-bit words w_0 ... w_511:
//
//   t_j  = sum of w_i * k_i                 mod p     a multilinear hash of piece j
//   name = L*r^n + t_1*r^(n-1) + ... + t_n  mod p     a polynomial over the pieces and the length
//
// as 16 little-endian bytes with the top bit set, so that no name is 0, which means "all zero" in a
// manifest.
//
// Bound: for any two different blocks chosen without knowing the key, the chance over the key that
// they get one name is at most 1/p for the pieces and n/p for the polynomial, so for blocks of 2
// MiB (n = 512) below 2^-117. With 2^40 different blocks (2 EiB) under one key, that any two of
// them collide has a chance below 2^79 * 2^-117 = 2^-38.
//
// Why this one: it is made for a GPU at memory speed. A thread can keep the keys of its few words
// in registers and add up 191-bit products without reducing, and the pieces may be taken in any
// order, each with its power of r.
//
// The key is secret to a user and a store. It is expanded from 32 bytes by ChaCha20 (RFC 8439),
// nonce "stasis-block" (12 bytes), counter from 0: the first 16 bytes of the stream give r, the
// next k_0, and so on, each as a little-endian number with its top bit cleared; p itself counts as
// 0.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/result.h"
#include "image/id128.h"

namespace stasis::image {

inline constexpr char kBlockNameFunction[] = "poly127-4k";
inline constexpr size_t kBlockPieceBytes = 4096;
inline constexpr size_t kBlockPieceWords = kBlockPieceBytes / 8;

using BlockSecret = std::array<uint8_t, 32>;

// An expanded key; immutable, and so free to be used by several threads.
class BlockKey {
 public:
  explicit BlockKey(const BlockSecret& secret);
  // A new one from the kernel's random numbers.
  static Result<BlockSecret> RandomSecret();

  // The name of a block of 1 to 2 MiB bytes.
  Id128 Name(std::string_view block) const;
  // Which key this is, without telling it: ChaCha20 stream bytes that no key number uses.
  const Id128& id() const { return id_; }

  // For who computes names elsewhere: k_i, and r to the power of n.
  struct Number {
    uint64_t low, high;
  };
  Number Word(size_t i) const;
  Number Power(unsigned n) const;

 private:
  struct Numbers;
  std::shared_ptr<const Numbers> numbers_;
  Id128 id_;
};

// Whether every byte is zero; decided by looking, never by a hash.
bool IsAllZero(std::string_view block);

}  // namespace stasis::image
