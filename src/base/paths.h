// Where Stasis keeps things; config/open_paths.h says where that is. Two roots: what means nothing
// after a reboot (journals, locks) and what must survive one (jobs, images).
#pragma once

#include <string>

namespace stasis {

struct Paths {
  std::string run;
  std::string data;
  std::string image_store;  // empty: below `data`
  std::string arena;        // the only place for arenas; empty: as arena_place.h chooses

  std::string journal() const { return run + "/journal"; }
  std::string jobs() const { return data + "/jobs"; }
  std::string images() const { return image_store.empty() ? data + "/images" : image_store; }
  std::string movers() const { return run + "/movers"; }
};

}  // namespace stasis
