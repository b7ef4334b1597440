// Completion of the command line. At each TAB a script of `stasis completion` runs `stasis
// __complete -- WORD...` in the user's shell and offers the printed words.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
}

namespace stasis::cli {

// Candidates for the last word of a command line.
struct Completion {
  struct Word {
    std::string text;
    std::string help;  // one line; may be empty
  };
  std::vector<Word> words;
  std::string prefix;     // Add() prepends it to each word: "--option="
  std::string typed;      // prefix of all candidates
  bool jobs = false;      // offer names of jobs
  bool images = false;    // offer names of images
  bool files = false;     // offer files, completed by the shell
  bool commands = false;  // offer programs, completed by the shell

  // Adds `text` if it begins with the typed prefix.
  void Add(const std::string& text, const std::string& help = {});
};

// `words` is the command line without its first word; the last one is completed and may be empty. A
// shell may pass "--option=value" as one word or, like bash, as three.
Completion Complete(const CLI::App& program, std::vector<std::string> words);

}  // namespace stasis::cli
