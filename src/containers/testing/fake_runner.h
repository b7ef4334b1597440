// A fake CommandRunner that answers the commands of runtimes with prepared output.
#pragma once

#include <fmt/format.h>

#include <map>
#include <string>
#include <vector>

#include "containers/command.h"

namespace stasis::containers {

class FakeRunner final : public CommandRunner {
 public:
  // Sets the answer to a command, whose words are joined by spaces.
  void Answer(const std::string& command, std::string out) {
    answers_[command] = {0, std::move(out), {}};
  }
  void Refuse(const std::string& command, std::string err, int status = 1 << 8) {
    answers_[command] = {status, {}, std::move(err)};
  }
  // Makes Find() succeed for a program, on PATH or in the given folders.
  void Install(const std::string& program, const std::string& path, const std::string& on = "") {
    programs_[{program, on}] = path;
  }
  const std::vector<std::string>& commands() const { return commands_; }
  const std::string& output_file() const { return output_file_; }
  const std::vector<std::string>& variables() const { return variables_; }

  std::string Find(const std::string& program, const std::string& path) override {
    auto found = programs_.find({program, path});
    return found == programs_.end() ? std::string() : found->second;
  }
  Result<CommandOutput> Run(const std::vector<std::string>& argv,
                            const CommandOptions& options) override {
    commands_.push_back(fmt::format("{}", fmt::join(argv, " ")));
    output_file_ = options.output_file;
    variables_.insert(variables_.end(), options.variables.begin(), options.variables.end());
    auto found = answers_.find(commands_.back());
    if (found != answers_.end()) return found->second;
    return Fail(Code::kNotFound, "there is no program " + argv[0] + " on PATH");
  }

 private:
  std::map<std::string, CommandOutput> answers_;
  std::map<std::pair<std::string, std::string>, std::string> programs_;
  std::vector<std::string> commands_;
  std::string output_file_;
  std::vector<std::string> variables_;
};

}  // namespace stasis::containers
