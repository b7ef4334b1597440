// The syntax of CUDA_VISIBLE_DEVICES. Needs nothing but libc, because the agent includes it.
#pragma once

#include <string_view>

namespace stasis::abi {

inline constexpr int kMostVisible = 64;

// SAFETY: no function of string_view that can throw is called: the agent links no C++ library.

// The GPUs that a list names, in its order. Read as driver 580 reads it:
//
//   1,0          indices, read as by strtol: " 1", "+1" and "1x" are 1, and "0x1" is 0
//   GPU-8567,…   UUIDs, or beginnings that only one UUID has, in any case; the first item decides
//                whether the list has indices or UUIDs
//   1,9,0        ends before the first item that names no GPU: 1
//   "", -1, ,1   name none: cuInit returns CUDA_ERROR_NO_DEVICE
//   0,1,1        names a GPU twice: cuInit returns CUDA_ERROR_INVALID_DEVICE
//   MIG-…        not read here: names none
struct VisibleDevices {
  int count = 0;
  bool repeated = false;  // a GPU is named twice; then count is 0
  int index[kMostVisible] = {};
};

namespace visible_devices {

constexpr char Lower(char c) { return c >= 'A' && c <= 'Z' ? char(c + ('a' - 'A')) : c; }
constexpr bool IsSpace(char c) { return c == ' ' || (c >= '\t' && c <= '\r'); }

constexpr bool StartsWith(std::string_view text, std::string_view start) {
  if (start.size() > text.size()) return false;
  for (size_t i = 0; i < start.size(); ++i) {
    if (Lower(text[i]) != Lower(start[i])) return false;
  }
  return true;
}

// Returns -1 if the item is no index.
constexpr int IndexOf(std::string_view item, int gpu_count) {
  size_t at = 0;
  while (at < item.size() && IsSpace(item[at])) ++at;
  if (at < item.size() && item[at] == '+') ++at;
  int value = -1;
  for (; at < item.size() && item[at] >= '0' && item[at] <= '9'; ++at) {
    value = (value < 0 ? 0 : value) * 10 + (item[at] - '0');
    if (value >= gpu_count) return -1;
  }
  return value;
}

constexpr bool IsUuid(std::string_view item) {
  return StartsWith(item, "GPU-") && item[0] == 'G' && item[1] == 'P' && item[2] == 'U';
}

// Returns -1 if no UUID, or more than one, starts like this.
constexpr int UuidOf(std::string_view item, const std::string_view* uuids, int gpu_count) {
  int found = -1;
  if (!IsUuid(item)) return -1;
  for (int i = 0; i < gpu_count; ++i) {
    if (!StartsWith(uuids[i], item)) continue;
    if (found >= 0) return -1;
    found = i;
  }
  return found;
}

}  // namespace visible_devices

// Returns whether the list has UUIDs, not indices.
constexpr bool HasUuids(std::string_view list) { return visible_devices::IsUuid(list); }

// Reads a list. `uuids` are those of the machine's GPUs ("GPU-…"), by index; they may be null if
// the list has indices. `gpu_count` is at most kMostVisible.
constexpr VisibleDevices ReadVisibleDevices(std::string_view list, const std::string_view* uuids,
                                            int gpu_count) {
  VisibleDevices visible;
  const bool by_uuid = HasUuids(list);
  for (size_t at = 0; at <= list.size();) {
    size_t end = at;
    while (end < list.size() && list[end] != ',') ++end;
    const std::string_view item(list.data() + at, end - at);
    at = end + 1;
    const int index = by_uuid ? visible_devices::UuidOf(item, uuids, gpu_count)
                              : visible_devices::IndexOf(item, gpu_count);
    if (index < 0) break;
    for (int i = 0; i < visible.count; ++i) {
      if (visible.index[i] == index) return {.count = 0, .repeated = true, .index = {}};
    }
    visible.index[visible.count++] = index;
  }
  return visible;
}

}  // namespace stasis::abi
