#include <memory>

#include "api/methods.h"
#include "cli/completion.h"
#include "cli/operation.h"

namespace stasis::cli {
namespace {

// Each script offers the output of `stasis __complete`: lines of a kind, a word and a help text,
// separated by tabs. SAFETY: a word is data. No script may pass it to `compgen -W`, `eval` or
// another expansion, which would execute a command embedded in a name.
constexpr char kBash[] =
    R"sh(# bash completion of stasis, by `stasis completion bash`: source <(stasis completion bash)
_stasis() {
  local kind word help current=${COMP_WORDS[COMP_CWORD]}
  if [[ $current == "=" ]]; then current=""; fi
  COMPREPLY=()
  while IFS=$'\t' read -r kind word help; do
    case $kind in
      word)
        printf -v word %q "$word"
        COMPREPLY+=("$word")
        ;;
      files)
        compopt -o filenames 2>/dev/null
        mapfile -t -O "${#COMPREPLY[@]}" COMPREPLY < <(compgen -f -- "$current")
        ;;
      commands) mapfile -t COMPREPLY < <(compgen -c -- "$current") ;;
    esac
  done < <(stasis __complete -- "${COMP_WORDS[@]:1:COMP_CWORD}" 2>/dev/null)
}
complete -F _stasis stasis
)sh";

constexpr char kZsh[] = R"sh(#compdef stasis
# zsh completion of stasis, by `stasis completion zsh`
_stasis() {
  local kind word help
  while IFS=$'\t' read -r kind word help; do
    case $kind in
      word) compadd -- "$word" ;;
      files) _files ;;
      commands) _command_names -e ;;
    esac
  done < <(stasis __complete -- "${(@)words[2,CURRENT-1]}" "$PREFIX" 2>/dev/null)
}
if [[ ${funcstack[1]} == _stasis ]]; then
  _stasis "$@"
else
  compdef _stasis stasis
fi
)sh";

constexpr char kFish[] =
    R"sh(# fish completion of stasis, by `stasis completion fish`: stasis completion fish | source
function __stasis_complete
    set -l typed (commandline -opc)
    set -l current (commandline -ct)
    stasis __complete -- $typed[2..-1] "$current" 2>/dev/null | while read -l -d \t kind word help
        switch $kind
            case word
                printf '%s\t%s\n' $word $help
            case files
                __fish_complete_path "$current"
            case commands
                complete -C "$current"
        end
    end
end
complete -c stasis -f -a '(__stasis_complete)'
)sh";

struct ShellRow {
  const char* name;
  const char* script;
};
constexpr ShellRow kShells[] = {{"bash", kBash}, {"zsh", kZsh}, {"fish", kFish}};

Status AddNames(Globals globals, Completion& completion) {
  STASIS_ASSIGN(globals.config, config::Load());
  STASIS_ASSIGN(api::Call call, OpenCall(globals));
  if (completion.jobs) {
    v1::ListJobsRequest request;
    request.set_all(true);
    request.set_brief(true);
    STASIS_ASSIGN(const auto response, api::ListJobs(call, request));
    for (const auto& job : response.jobs()) completion.Add(job.id());
    for (const auto& job : response.damaged()) completion.Add(job.id());
  }
  if (completion.images) {
    v1::ListImagesRequest request;
    request.set_brief(true);
    STASIS_ASSIGN(const auto response, api::ListImages(call, request));
    for (const auto& image : response.images()) {
      if (image.ok()) completion.Add(image.name());
    }
  }
  return {};
}

Outcome PrintCompletion(const Globals& globals, const App& program) {
  Completion completion = Complete(program.parser(), globals.command);
  // A completion must not print errors.
  if (completion.jobs || completion.images) (void)AddNames(globals, completion);
  std::string text;
  for (const auto& [word, help] : completion.words) text += "word\t" + word + "\t" + help + "\n";
  if (completion.files) text += "files\n";
  if (completion.commands) text += "commands\n";
  if (!text.empty()) PrintResult(globals, text, {});
  return 0;
}

}  // namespace

void RegisterCompletion(App app, const std::function<void(Action)>& select) {
  auto shell = std::make_shared<std::string>();
  auto verb =
      app.add_subcommand("completion", "Print a shell script that completes stasis commands");
  verb->add_option("SHELL", *shell, "bash, zsh or fish")
      ->one_of({"bash", "zsh", "fish"})
      ->required();
  verb->callback([=] {
    select([=](const Globals& globals) -> Outcome {
      for (const ShellRow& row : kShells) {
        if (*shell != row.name) continue;
        PrintResult(globals, row.script, {{"shell", row.name}, {"script", row.script}});
      }
      return 0;
    });
  });
  // The hidden command for the scripts.
  auto inner = app.add_subcommand(kCompleteVerb, "")->group("");
  inner->callback([=, program = app] {
    select([=](const Globals& globals) { return PrintCompletion(globals, program); });
  });
}

}  // namespace stasis::cli
