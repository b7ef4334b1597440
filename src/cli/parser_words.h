// The words that the parser accepts, for completion and for suggestions after typing errors.
#pragma once

#include <string>
#include <vector>

namespace CLI {
class App;
class Option;
}  // namespace CLI

namespace stasis::cli {

// Returns names and aliases of the subcommands shown in the help.
std::vector<std::string> VerbNames(const CLI::App& verb);
const CLI::App* FindVerb(const CLI::App& verb, const std::string& name);

// Returns the options of `verb` and `program` shown in the help, without positional arguments.
std::vector<const CLI::Option*> ShownOptions(const CLI::App& verb, const CLI::App& program);
std::vector<std::string> NamesOf(const CLI::Option& option);
bool TakesValue(const CLI::Option& option);

// Returns true if `word` is an option of `verb` or `program` whose value is the next word. Returns
// false for an unknown option.
bool WantsNextWord(const CLI::App& verb, const CLI::App& program, const std::string& word);

// Returns the name in `known` that is most similar to `typed`: the name with the fewest edits, or
// else the only name that begins with `typed`. Returns an empty string if no name is similar.
std::string ClosestName(const std::string& typed, const std::vector<std::string>& known);

}  // namespace stasis::cli
