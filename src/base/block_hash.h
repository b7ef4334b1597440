// poly127-4k: a keyed universal hash of 128 bits of a block of memory, over GF(p) with
// p = 2^127-1. Images store the hash only encrypted, because enough pairs of blocks and hashes
// reveal the key.
//
// The key is k_0 ... k_511 and r, all below p. A block of L bytes is padded with zeros to n pieces
// of 4096 bytes, and each piece read as 512 little-endian 64-bit words w_0 ... w_511:
//
//   t_j  = sum of w_i * k_i                 mod p     a multilinear hash of piece j
//   hash = L*r^n + t_1*r^(n-1) + ... + t_n  mod p     a polynomial over the pieces and the length
//
// as 16 little-endian bytes with the top bit set. No hash is therefore 0, and 0 can represent a
// block that is all zero.
//
// Bound: two different blocks, chosen without knowledge of the key, have the same hash with a
// probability (over the key) of at most 1/p for the pieces and n/p for the polynomial: below 2^-117
// for blocks of 2 MiB (n = 512). Among 2^40 different blocks (2 EiB) under one key, the probability
// of any collision is below 2^79 * 2^-117 = 2^-38.
//
// Why this hash: a GPU computes it at memory speed. A thread keeps the keys of its few words in
// registers and adds up 191-bit products without reducing, and the pieces may be processed in any
// order, each with its power of r.
//
// The key is a secret of one user, or of all users of a master key (base/secret.h). It is expanded
// from 32 bytes by ChaCha20 (RFC 8439), nonce "stasis-block" (12 bytes), counter from 0: the first
// 16 bytes of the stream give r, the next k_0, and so on, each as a little-endian number with its
// top bit cleared; p itself counts as 0.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <string_view>

#include "base/id128.h"
#include "base/result.h"

namespace stasis {

inline constexpr uint32_t kBlockBytes = 2u << 20;  // GPU memory is hashed in blocks of this size
inline constexpr size_t kBlockPieceBytes = 4096;
inline constexpr size_t kBlockPieceWords = kBlockPieceBytes / 8;

using BlockSecret = std::array<uint8_t, 32>;

// An expanded key. Immutable; safe to call from any thread.
class BlockKey {
 public:
  explicit BlockKey(const BlockSecret& secret);
  // Returns a new secret from the kernel's random numbers.
  static Result<BlockSecret> RandomSecret();

  // Returns the hash of a block of 1 byte to 2 MiB.
  Id128 Hash(std::string_view block) const;
  // Identifies the key without revealing it: bytes of the ChaCha20 stream that no number of the
  // key uses.
  const Id128& id() const { return id_; }

  // Return k_i, and r to the power of n, for a GPU kernel that computes the hash.
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

// Returns whether every byte is zero, by comparing bytes and not by a hash.
bool IsAllZero(std::string_view block);

}  // namespace stasis
