// The files of a place of arenas (arena.h): what their names say, and their locks.
#pragma once

#include <fcntl.h>
#include <sys/types.h>

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "dataplane/arena_place.h"
#include "dataplane/arena_record.h"

namespace stasis::dataplane {

inline constexpr std::string_view kData = ".data";
inline constexpr std::string_view kRecord = ".record";
inline constexpr std::string_view kFree = "free-";
inline constexpr std::string_view kKept = "kept-";

// PLACE/PID-START-UUID.data, of a process's data.
std::string DataPath(const std::string& folder, const ArenaKey& key);
std::string FreePath(const ArenaPlace& place, uid_t owner, uint64_t number);
std::string KeptPath(const ArenaPlace& place, const ArenaKey& key);
// The record beside a data file.
std::string RecordPath(const std::string& data_path);

// Key of a file by its name alone; absent for a free one or a stranger's.
std::optional<ArenaKey> KeyOf(std::string_view name);
std::optional<ArenaKey> KeyOfKept(std::string_view name);
// Whose data was in a free file.
std::optional<uid_t> OwnerOfFree(std::string_view name);

// Empty when the place cannot be read.
std::vector<std::string> NamesIn(const ArenaPlace& place);

// A lock that belongs to the open file, so a mover that was sent its descriptor holds it too.
struct flock WholeFile();
// Asks and does not take it: who comes at that moment is not turned away.
bool IsLocked(const std::string& path);

}  // namespace stasis::dataplane
