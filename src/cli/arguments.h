// The verbs, options and flags of the command line, with CLI11's words. CLI11 itself is behind it:
// its headers cost every file that includes them four seconds and 100 KB of code, so only those do
// that ask what was parsed.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stasis::cli {

// Both are handles: copied freely, and used like the pointers that CLI11 hands out.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  const Option* operator->() const { return this; }

  Option required() const;
  Option expected(int least, int most) const;  // so many words
  Option excludes(Option other) const;
  Option delimiter(char separator) const;
  Option range(int least, int most) const;
  Option range(double least, double most) const;
  Option one_of(std::initializer_list<std::string> words) const;
  // In the help:
  Option group(const std::string& name) const;  // "": not shown
  Option option_text(const std::string& text) const;
  Option capture_default_str() const;

  size_t count() const;

 private:
  CLI::Option* option_;
};

class App {
 public:
  explicit App(CLI::App* app) : app_(app) {}
  const App* operator->() const { return this; }
  CLI::App& parser() const { return *app_; }

  App add_subcommand(const std::string& name, const std::string& help) const;
  App get_subcommand(const std::string& name) const;
  App require_subcommand(int count) const;
  // `value` is of a type that arguments.cc names.
  template <typename T>
  Option add_option(const std::string& name, T& value, const std::string& help) const;
  Option add_ignored_words(const std::string& name) const;
  Option add_flag(const std::string& name, bool& value, const std::string& help) const;
  Option add_ignored_flag(const std::string& name, const std::string& help) const;
  App callback(std::function<void()> call) const;
  App alias(const std::string& name) const;
  App group(const std::string& name) const;  // "": not shown in the help
  App footer(const std::string& text) const;

 private:
  CLI::App* app_;
};

}  // namespace stasis::cli
