// Notes in the account of a migration.
#pragma once

#include <fmt/format.h>

#include <string>

#include "api/utf8.h"
#include "objects/printable.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

inline constexpr size_t kMostNotes = 20;
inline constexpr size_t kMostNoteBytes = 1000;

// Adds the first kMostNotes notes of the other host, each on one line and with at most
// kMostNoteBytes.
template <class Notes>
void AddNotesOf(const std::string& host, const Notes& notes, v1::OperationResult& result) {
  size_t added = 0;
  for (const std::string& note : notes) {
    if (++added > kMostNotes) return;
    result.add_notes(
        fmt::format("on {}: {}", Utf8(host), Utf8(objects::Printable(note, kMostNoteBytes))));
  }
}

}  // namespace stasis::api
