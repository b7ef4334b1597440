// Words and numbers of an image for a terminal and for JSON, whatever the program wrote into them.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "store/manifest.h"

namespace stasis::store {

std::string Bytes(uint64_t bytes);  // "1.5 GiB"
std::string Utc(int64_t unix_ns);   // "2026-11-20T05:47:55Z"
// JSON is UTF-8, and what a program calls itself need not be.
nlohmann::json Text(const std::string& text);
nlohmann::json Texts(const std::vector<std::string>& texts);
std::string CommandLine(const Job& job);
// Names of a job for a list: its id, else its process.
std::string JobName(const Job& job);
uint64_t DeviceBytes(const Manifest& manifest);

}  // namespace stasis::store
