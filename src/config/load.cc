#include "config/load.h"

#include <fmt/format.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <cstdlib>

#include "base/file.h"
#include "config/file.h"

namespace stasis::config {
namespace {

std::string UserFile(const Surroundings& surroundings) {
  std::string folder = surroundings.variable("XDG_CONFIG_HOME");
  // The XDG specification says that relative paths must be ignored.
  if (!folder.starts_with('/')) {
    const std::string home = surroundings.variable("HOME");
    folder = home.starts_with('/') ? home + "/.config" : "";
  }
  return folder.empty() ? "" : folder + "/stasis/config.toml";
}

Status AddFile(Config& config, const std::string& path, const Surroundings& surroundings) {
  STASIS_ASSIGN(auto text, ReadConfigFile(path, surroundings.uid));
  config.files.push_back({path, text.has_value()});
  if (!text) return {};
  STASIS_ASSIGN(auto entries, ParseFile(*text, path));
  for (const Entry& entry : entries) {
    const Row& row = Rows()[entry.row];
    if (Status set = Set(row, entry.raw, From::kFile, config.settings); !set) {
      Error error = std::move(set).error();
      error.message = fmt::format("{}, line {}: {} {}", path, entry.line, row.key, error.message);
      error.hint = "nothing was done; correct that line, or leave it out";
      return Fail(std::move(error));
    }
    config.origins[entry.row] = {From::kFile, path, entry.line};
  }
  return {};
}

Status AddVariables(Config& config, const Surroundings& surroundings) {
  for (size_t i = 0; i < Rows().size(); ++i) {
    const Row& row = Rows()[i];
    const std::string value = surroundings.variable(row.variable);
    if (value.empty()) continue;
    if (Status set = Set(row, value, From::kEnvironment, config.settings); !set) {
      Error error = std::move(set).error();
      error.message = fmt::format("{} {}", row.variable, error.message);
      error.hint = fmt::format(
          "nothing was done; correct the variable, or `unset {}` to use the value of {} in the "
          "configuration file, or its default",
          row.variable, row.key);
      return Fail(std::move(error));
    }
    config.origins[i] = {From::kEnvironment, "", 0};
  }
  return {};
}

}  // namespace

Surroundings::Surroundings()
    : uid(::geteuid()),
      system_file("/etc/stasis/config.toml"),
      variable([](const char* name) {
        const char* value = std::getenv(name);
        return std::string(value == nullptr ? "" : value);
      }),
      more_rights(::getauxval(AT_SECURE) != 0) {}

Result<Config> Load(const Surroundings& surroundings) {
  Config config;
  if (std::string named = surroundings.variable("STASIS_CONFIG"); !named.empty()) {
    named = AbsolutePath(named);
    STASIS_TRY(AddFile(config, named, surroundings));
    if (!config.files.back().found) {
      return Fail(
          Code::kNotFound, "STASIS_CONFIG names " + named + ", which does not exist",
          "nothing was done; after `unset STASIS_CONFIG` the usual configuration files are used");
    }
  } else {
    STASIS_TRY(AddFile(config, surroundings.system_file, surroundings));
    const std::string user = surroundings.uid == 0 ? "" : UserFile(surroundings);
    if (!user.empty()) STASIS_TRY(AddFile(config, user, surroundings));
  }
  STASIS_TRY(AddVariables(config, surroundings));
  if (surroundings.more_rights) STASIS_TRY(DropUntrusted(config, surroundings));
  return config;
}

Status DropUntrusted(Config& config, const Surroundings& surroundings) {
  Config machine;
  STASIS_TRY(AddFile(machine, surroundings.system_file, surroundings));
  for (size_t i = 0; i < Rows().size(); ++i) {
    const Row& row = Rows()[i];
    if (!row.trusted) continue;
    std::visit([&](auto member) { config.settings.*member = machine.settings.*member; },
               row.member);
    config.origins[i] = machine.origins[i];
  }
  return {};
}

}  // namespace stasis::config
