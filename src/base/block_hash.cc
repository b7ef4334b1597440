#include "base/block_hash.h"

#include <sys/random.h>

#include <bit>
#include <cerrno>
#include <cstring>

namespace stasis {

namespace {

using U128 = unsigned __int128;

constexpr U128 kP = (U128{1} << 127) - 1;

// Returns x mod p. After the first line x is at most 2^127, so one subtraction is enough.
U128 Fold(U128 x) {
  x = (x & kP) + (x >> 127);
  return x >= kP ? x - kP : x;
}

// Returns hi*2^128 + lo mod p, for hi below 2^126. 2^128 is congruent to 2 mod p.
U128 Reduce(U128 hi, U128 lo) { return Fold(Fold(lo) + Fold(hi << 1)); }

U128 MulModP(U128 a, U128 b) {
  uint64_t a0 = static_cast<uint64_t>(a), a1 = static_cast<uint64_t>(a >> 64);
  uint64_t b0 = static_cast<uint64_t>(b), b1 = static_cast<uint64_t>(b >> 64);
  U128 low = U128{a0} * b0;
  // Each factor's upper half is below 2^63, so the sum of the two products stays below 2^128.
  U128 middle = U128{a0} * b1 + U128{a1} * b0;
  U128 high = U128{a1} * b1;
  U128 sum = low + (middle << 64);
  high += (middle >> 64) + (sum < low ? 1 : 0);
  return Reduce(high, sum);
}

void ChaCha20Block(const uint32_t (&input)[16], uint8_t* out) {
  uint32_t x[16];
  std::memcpy(x, input, sizeof x);
  auto quarter = [&](int a, int b, int c, int d) {
    x[a] += x[b];
    x[d] = std::rotl(x[d] ^ x[a], 16);
    x[c] += x[d];
    x[b] = std::rotl(x[b] ^ x[c], 12);
    x[a] += x[b];
    x[d] = std::rotl(x[d] ^ x[a], 8);
    x[c] += x[d];
    x[b] = std::rotl(x[b] ^ x[c], 7);
  };
  for (int round = 0; round < 20; round += 2) {
    for (int i = 0; i < 4; ++i) quarter(i, 4 + i, 8 + i, 12 + i);
    for (int i = 0; i < 4; ++i) quarter(i, 4 + (i + 1) % 4, 8 + (i + 2) % 4, 12 + (i + 3) % 4);
  }
  for (int i = 0; i < 16; ++i) x[i] += input[i];
  std::memcpy(out, x, sizeof x);
}

// Writes the first `size` bytes of the stream. `size` must be a multiple of 64.
void ChaCha20(const BlockSecret& secret, uint8_t* out, size_t size) {
  uint32_t state[16] = {0x61707865, 0x3320646e, 0x79622d32, 0x6b206574};
  std::memcpy(state + 4, secret.data(), secret.size());
  std::memcpy(state + 13, "stasis-block", 12);
  for (; size >= 64; size -= 64, out += 64, ++state[12]) ChaCha20Block(state, out);
}

U128 KeyNumber(const uint8_t* raw) {
  U128 value;
  std::memcpy(&value, raw, sizeof value);
  value &= kP;
  return value == kP ? 0 : value;
}

}  // namespace

struct BlockKey::Numbers {
  U128 r;
  uint64_t low[kBlockPieceWords];  // k_i in halves
  uint64_t high[kBlockPieceWords];
};

BlockKey::BlockKey(const BlockSecret& secret) {
  constexpr size_t kNumberBytes = (1 + kBlockPieceWords) * 16;
  constexpr size_t kStreamBytes = (kNumberBytes + 16 + 63) / 64 * 64;
  uint8_t stream[kStreamBytes];
  ChaCha20(secret, stream, sizeof stream);
  auto numbers = std::make_shared<Numbers>();
  numbers->r = KeyNumber(stream);
  for (size_t i = 0; i < kBlockPieceWords; ++i) {
    U128 k = KeyNumber(stream + 16 * (i + 1));
    numbers->low[i] = static_cast<uint64_t>(k);
    numbers->high[i] = static_cast<uint64_t>(k >> 64);
  }
  numbers_ = std::move(numbers);
  id_ = Id128::FromRaw(stream + kNumberBytes);
}

Result<BlockSecret> BlockKey::RandomSecret() {
  BlockSecret secret;
  if (::getrandom(secret.data(), secret.size(), 0) != static_cast<ssize_t>(secret.size())) {
    return FailErrno(errno, "read random numbers");
  }
  return secret;
}

BlockKey::Number BlockKey::Word(size_t i) const { return {numbers_->low[i], numbers_->high[i]}; }

BlockKey::Number BlockKey::Power(unsigned n) const {
  U128 power = 1;
  for (; n > 0; --n) power = MulModP(power, numbers_->r);
  return {static_cast<uint64_t>(power), static_cast<uint64_t>(power >> 64)};
}

Id128 BlockKey::Hash(std::string_view block) const {
  const Numbers& key = *numbers_;
  U128 hash = block.size();
  char last[kBlockPieceBytes];
  while (!block.empty()) {
    const char* piece = block.data();
    size_t taken = std::min(block.size(), kBlockPieceBytes);
    if (taken < kBlockPieceBytes) {
      std::memset(last, 0, sizeof last);
      std::memcpy(last, piece, taken);
      piece = last;
    }
    block.remove_prefix(taken);

    // The sums of the products with the low and the high halves of the keys. A sum of 512 products
    // below 2^128 needs 137 bits, so each sum counts its carries in a third word.
    U128 low = 0, high = 0;
    uint64_t low_carry = 0, high_carry = 0;
    for (size_t i = 0; i < kBlockPieceWords; ++i) {
      uint64_t word;
      std::memcpy(&word, piece + 8 * i, 8);
      U128 product = U128{word} * key.low[i];
      low += product;
      low_carry += low < product;
      product = U128{word} * key.high[i];
      high += product;
      high_carry += high < product;
    }
    U128 tile = Reduce(low_carry, low);
    // The sum of the high halves must be multiplied by 2^64.
    tile = Fold(tile + MulModP(Reduce(high_carry, high), U128{1} << 64));
    hash = Fold(MulModP(hash, key.r) + tile);
  }
  hash |= U128{1} << 127;
  return Id128::FromRaw(&hash);
}

bool IsAllZero(std::string_view block) {
  if (block.empty()) return true;
  // All bytes are zero if the first one is, and each byte equals the next one.
  return block[0] == 0 && std::memcmp(block.data(), block.data() + 1, block.size() - 1) == 0;
}

}  // namespace stasis
