#include "base/sha256.h"

#include <bit>
#include <cassert>
#include <cstring>
#include <string>

namespace stasis {
namespace {

constexpr size_t kShaBlockBytes = 64;

constexpr uint32_t kRound[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5,
    0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da,
    0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85,
    0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3,
    0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2};

uint32_t BigEndian(const void* raw) {
  uint32_t value;
  std::memcpy(&value, raw, sizeof value);
  return __builtin_bswap32(value);
}

void AddBlock(uint32_t (&state)[8], const char* block) {
  uint32_t w[64];
  for (size_t i = 0; i < 16; ++i) w[i] = BigEndian(block + 4 * i);
  for (size_t i = 16; i < 64; ++i) {
    const uint32_t a = w[i - 15], b = w[i - 2];
    w[i] = w[i - 16] + w[i - 7] + (std::rotr(a, 7) ^ std::rotr(a, 18) ^ (a >> 3)) +
           (std::rotr(b, 17) ^ std::rotr(b, 19) ^ (b >> 10));
  }
  uint32_t s[8];
  std::memcpy(s, state, sizeof s);
  for (size_t i = 0; i < 64; ++i) {
    const uint32_t choice = (s[4] & s[5]) ^ (~s[4] & s[6]);
    const uint32_t majority = (s[0] & s[1]) ^ (s[0] & s[2]) ^ (s[1] & s[2]);
    const uint32_t t1 = s[7] + (std::rotr(s[4], 6) ^ std::rotr(s[4], 11) ^ std::rotr(s[4], 25)) +
                        choice + kRound[i] + w[i];
    const uint32_t t2 = (std::rotr(s[0], 2) ^ std::rotr(s[0], 13) ^ std::rotr(s[0], 22)) + majority;
    std::memmove(s + 1, s, 7 * sizeof s[0]);
    s[4] += t1;
    s[0] = t1 + t2;
  }
  for (size_t i = 0; i < 8; ++i) state[i] += s[i];
}

}  // namespace

Sha256Digest Sha256(std::string_view message) {
  uint32_t state[8] = {0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a,
                       0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19};
  const uint64_t bits = uint64_t{message.size()} * 8;
  for (; message.size() >= kShaBlockBytes; message.remove_prefix(kShaBlockBytes)) {
    AddBlock(state, message.data());
  }
  // The final block: the remaining bytes, a one bit, zeros, and the length in bits in the last
  // eight bytes.
  char tail[2 * kShaBlockBytes] = {};
  message.copy(tail, message.size());
  tail[message.size()] = static_cast<char>(0x80);
  const size_t tail_bytes =
      message.size() + 9 <= kShaBlockBytes ? kShaBlockBytes : 2 * kShaBlockBytes;
  const uint64_t length = __builtin_bswap64(bits);
  std::memcpy(tail + tail_bytes - sizeof length, &length, sizeof length);
  for (size_t at = 0; at < tail_bytes; at += kShaBlockBytes) AddBlock(state, tail + at);

  Sha256Digest digest;
  for (size_t i = 0; i < 8; ++i) {
    const uint32_t word = __builtin_bswap32(state[i]);
    std::memcpy(digest.data() + 4 * i, &word, sizeof word);
  }
  return digest;
}

Sha256Digest HmacSha256(std::string_view key, std::string_view message) {
  assert(key.size() <= kShaBlockBytes);
  std::string inner(kShaBlockBytes, '\x36');
  std::string outer(kShaBlockBytes, '\x5c');
  for (size_t i = 0; i < key.size(); ++i) {
    inner[i] = static_cast<char>(inner[i] ^ key[i]);
    outer[i] = static_cast<char>(outer[i] ^ key[i]);
  }
  inner += message;
  outer += View(Sha256(inner));
  return Sha256(outer);
}

}  // namespace stasis
