// Formats tables for human readers; programs use --json.
#pragma once

#include <string>
#include <vector>

namespace stasis::cli {

// Formats rows of equal length as left-aligned columns, one line each. The first row has the
// headings.
std::string FormatTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace stasis::cli
