// Columns for people; programs take --json.
#pragma once

#include <string>
#include <vector>

namespace stasis::cli {

// Rows of the same number of cells, the first one the heads: one line each, cells aligned left.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace stasis::cli
