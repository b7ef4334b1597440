#include "agent/visible_list.h"

#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

namespace stasis::agent {
namespace {

// Finds "GPU UUID: \t GPU-…" in the text of a file. Returns false if there is no UUID.
bool FindUuid(const char* text, char (&uuid)[kUuidBytes]) {
  const char* line = strstr(text, "GPU UUID:");
  const char* at = line == nullptr ? nullptr : strstr(line, "GPU-");
  if (at == nullptr || strnlen(at, kUuidBytes) < kUuidBytes) return false;
  memcpy(uuid, at, kUuidBytes);
  for (char c : uuid) {
    if (c <= ' ' || c == ',') return false;  // not yet known: "GPU-????????-…" is accepted
  }
  return true;
}

}  // namespace

void ReadGpuNames(const char* folder, GpuNames* names) {
  names->count = 0;
  DIR* gpus = opendir(folder);
  if (gpus == nullptr) return;
  while (const dirent* gpu = readdir(gpus)) {
    if (gpu->d_name[0] == '.' || names->count == abi::kMostVisible) continue;
    char path[512];
    const int length = snprintf(path, sizeof(path), "%s/%s/information", folder, gpu->d_name);
    if (length < 0 || size_t(length) >= sizeof(path)) continue;
    const int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) continue;
    char text[4096];
    const ssize_t got = read(fd, text, sizeof(text) - 1);
    close(fd);
    text[got > 0 ? got : 0] = '\0';
    char(&uuid)[kUuidBytes] = names->text[names->count];
    if (FindUuid(text, uuid)) names->uuids[names->count++] = {uuid, kUuidBytes};
  }
  closedir(gpus);
}

int ListAllGpus(std::string_view list, const GpuNames& names, char (&all)[kListBytes]) {
  const bool by_uuid = abi::HasUuids(list);
  const int count = by_uuid ? names.count : abi::kMostVisible;
  const abi::VisibleDevices visible = abi::ReadVisibleDevices(list, names.uuids, count);
  size_t at = 0;
  auto add = [&](int index) {
    const size_t left = kListBytes - at;
    if (by_uuid) {
      at += size_t(snprintf(all + at, left, "%s%.*s", at == 0 ? "" : ",", int(kUuidBytes),
                            names.uuids[index].data()));
    } else {
      at += size_t(snprintf(all + at, left, "%s%d", at == 0 ? "" : ",", index));
    }
  };
  for (int i = 0; i < visible.count; ++i) add(visible.index[i]);
  for (int i = 0; i < count && visible.count > 0; ++i) {
    bool is_listed = false;
    for (int k = 0; k < visible.count; ++k) is_listed |= visible.index[k] == i;
    if (!is_listed) add(i);
  }
  return visible.count;
}

}  // namespace stasis::agent
