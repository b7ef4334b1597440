// Completion of the command line by the user's shell. The scripts are made from the parser's own
// model of the verbs, so they know what this very program takes; names of jobs and images are asked
// for when they are needed.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stasis::cli {

// What a word on the command line may be.
struct Words {
  std::vector<std::string> words;  // a fixed list
  bool jobs = false;               // names of jobs
  bool images = false;             // names of images
  bool anything = false;           // files, as the shell completes them
};

struct OptionModel {
  std::vector<std::string> names;  // "-d", "--dir"
  std::string help;
  bool takes_value = false;
  Words value;
};

struct VerbModel {
  std::vector<std::string> names;  // with aliases; empty for the program itself
  std::string help;
  std::vector<OptionModel> options;  // also those that every verb has
  Words arguments;
  bool takes_command = false;  // what follows `--` is a program and its arguments
  std::vector<VerbModel> verbs;
};

// Of the whole program.
VerbModel ModelOf(const CLI::App& app);

std::string BashCompletion(const VerbModel& program);
std::string ZshCompletion(const VerbModel& program);
std::string FishCompletion(const VerbModel& program);

}  // namespace stasis::cli
