// File names and locks in an arena place (arena.h).
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
inline constexpr std::string_view kReady = "ready-";

// Returns PLACE/PID-START-UUID.data.
std::string DataPath(const std::string& folder, const ArenaKey& key);
std::string FreePath(const ArenaPlace& place, uid_t owner, uint64_t number);
std::string KeptPath(const ArenaPlace& place, const ArenaKey& key);
std::string ReadyPath(const ArenaPlace& place, const ArenaKey& key);
// Returns the path of the record of a data file.
std::string RecordPath(const std::string& data_path);

// Parses the key from a file name. Returns nothing for free files and unrelated names.
std::optional<ArenaKey> KeyOf(std::string_view name);
std::optional<ArenaKey> KeyOfKept(std::string_view name);
std::optional<ArenaKey> KeyOfReady(std::string_view name);
// Returns the user whose data was in a free file.
std::optional<uid_t> OwnerOfFree(std::string_view name);

// Returns an empty list if the place cannot be read.
std::vector<std::string> NamesIn(const ArenaPlace& place);

// Returns the arguments of a lock on the open file description. A mover that received the
// descriptor holds this lock too.
struct flock WholeFile();
// Tests the lock without taking it, so no concurrent attempt to take it fails.
bool IsLocked(const std::string& path);

}  // namespace stasis::dataplane
