// The directories that Stasis uses; config/open_paths.h chooses them. There are two roots: one for
// state that a reboot makes meaningless (journals, locks), one for state that must survive it
// (jobs, images).
#pragma once

#include <string>

namespace stasis {

struct Paths {
  std::string run;
  std::string data;
  std::string image_store;  // below `data` if empty
  std::string arena;        // the only place for arenas; chosen by arena_place.h if empty

  std::string journal() const { return run + "/journal"; }
  std::string jobs() const { return data + "/jobs"; }
  std::string images() const { return image_store.empty() ? data + "/images" : image_store; }
  // Resident helpers (ipc/resident.h).
  std::string helpers() const { return run + "/helpers"; }
};

}  // namespace stasis
