// A store as a person or a script wants to see it: `stasis image ls` and `gc`, each as text and as
// JSON. Text from an image is made fit for a terminal, and for JSON.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "base/result.h"
#include "store/gc.h"
#include "store/manifest.h"

namespace stasis::store {

// One image of a store. A damaged one is in the list too, with what is wrong.
struct ImageSummary {
  std::string name;
  std::string path;
  std::optional<Manifest> manifest;
  std::optional<Error> error;  // when there is no manifest
};

// By name. A store that does not exist holds none.
Result<std::vector<ImageSummary>> SummarizeStore(const std::string& store);

std::string ListText(const std::vector<ImageSummary>& images);
nlohmann::json ListJson(const std::vector<ImageSummary>& images);

std::string GcText(const GcReport& report);
nlohmann::json GcJson(const GcReport& report);

}  // namespace stasis::store
