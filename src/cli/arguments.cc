#include "cli/arguments.h"

#include <CLI/CLI.hpp>
#include <utility>
#include <vector>

namespace stasis::cli {

Option Option::required() const { return Option(option_->required()); }
Option Option::expected(int least, int most) const {
  return Option(option_->expected(least, most));
}
Option Option::excludes(Option other) const { return Option(option_->excludes(other.option_)); }
Option Option::delimiter(char separator) const { return Option(option_->delimiter(separator)); }
Option Option::range(int least, int most) const {
  return Option(option_->check(CLI::Range(least, most)));
}
Option Option::range(double least, double most) const {
  return Option(option_->check(CLI::Range(least, most)));
}
Option Option::repeatable() const { return Option(option_->allow_extra_args(false)); }
Option Option::one_of(std::initializer_list<std::string> words) const {
  return Option(option_->check(CLI::IsMember(std::vector<std::string>(words))));
}
Option Option::group(const std::string& name) const { return Option(option_->group(name)); }
Option Option::option_text(const std::string& text) const {
  return Option(option_->option_text(text));
}
Option Option::capture_default_str() const { return Option(option_->capture_default_str()); }
size_t Option::count() const { return option_->count(); }

App App::add_subcommand(const std::string& name, const std::string& help) const {
  return App(app_->add_subcommand(name, help));
}
App App::get_subcommand(const std::string& name) const { return App(app_->get_subcommand(name)); }
App App::require_subcommand(int count) const { return App(app_->require_subcommand(count)); }

template <typename T>
Option App::add_option(const std::string& name, T& value, const std::string& help) const {
  return Option(app_->add_option(name, value, help));
}
template Option App::add_option(const std::string&, std::string&, const std::string&) const;
template Option App::add_option(const std::string&, std::vector<std::string>&,
                                const std::string&) const;
template Option App::add_option(const std::string&, int&, const std::string&) const;
template Option App::add_option(const std::string&, double&, const std::string&) const;

Option App::add_ignored_words(const std::string& name) const {
  using Words = std::vector<std::string>;
  return Option(app_->add_option_function<Words>(name, [](const Words&) {}));
}
Option App::add_flag(const std::string& name, bool& value, const std::string& help) const {
  return Option(app_->add_flag(name, value, help));
}
Option App::add_flag(const std::string& name, std::string& value, const std::string& help) const {
  return Option(app_->add_flag(name, value, help));
}
Option App::add_flag(const std::string& name, const std::string& help,
                     std::function<void()> call) const {
  return Option(app_->add_flag_callback(name, std::move(call), help));
}
Option App::add_ignored_flag(const std::string& name, const std::string& help) const {
  return add_flag(name, help, [] {});
}
App App::callback(std::function<void()> call) const { return App(app_->callback(std::move(call))); }
App App::alias(const std::string& name) const { return App(app_->alias(name)); }
App App::group(const std::string& name) const { return App(app_->group(name)); }
App App::footer(const std::string& text) const { return App(app_->footer(text)); }

}  // namespace stasis::cli
