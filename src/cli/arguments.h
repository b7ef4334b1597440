// Commands, options and flags of the command line, built on CLI11. Each file that includes CLI11's
// headers takes four seconds longer to compile and gains 100 KB of code, so only files that examine
// the parsed result include them.
#pragma once

#include <functional>
#include <initializer_list>
#include <string>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stasis::cli {

// Option and App are handles. They are cheap to copy and are used like CLI11's pointers.
class Option {
 public:
  explicit Option(CLI::Option* option) : option_(option) {}
  const Option* operator->() const { return this; }

  Option required() const;
  Option expected(int least, int most) const;  // number of words
  // One word each time that the option is given, which may be several times.
  Option repeatable() const;
  Option excludes(Option other) const;
  Option delimiter(char separator) const;
  Option range(int least, int most) const;
  Option range(double least, double most) const;
  Option one_of(std::initializer_list<std::string> words) const;
  // Properties shown in the help:
  Option group(const std::string& name) const;  // "": hidden
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
  // `value` must have a type that arguments.cc instantiates.
  template <typename T>
  Option add_option(const std::string& name, T& value, const std::string& help) const;
  Option add_ignored_words(const std::string& name) const;
  Option add_flag(const std::string& name, bool& value, const std::string& help) const;
  // A flag that may have a value: "--name" or "--name=VALUE". Without one, `value` becomes "true".
  Option add_flag(const std::string& name, std::string& value, const std::string& help) const;
  // Runs `call` when the flag is given.
  Option add_flag(const std::string& name, const std::string& help,
                  std::function<void()> call) const;
  Option add_ignored_flag(const std::string& name, const std::string& help) const;
  App callback(std::function<void()> call) const;
  App alias(const std::string& name) const;
  App group(const std::string& name) const;  // "": hidden in the help
  App footer(const std::string& text) const;

 private:
  CLI::App* app_;
};

}  // namespace stasis::cli
