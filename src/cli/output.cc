#include <fmt/format.h>

#include <cerrno>
#include <cstdio>

#include "cli/parser_words.h"
#include "cli/verb.h"

namespace stasis::cli {
namespace {

// Output contains names of other users' programs and files, which must not control the terminal. A
// control character is a byte below ' ', DEL, or C2 80 to C2 9F in UTF-8.
std::string Printable(std::string text) {
  for (size_t i = 0; i < text.size(); ++i) {
    const auto byte = static_cast<unsigned char>(text[i]);
    const auto next = static_cast<unsigned char>(i + 1 < text.size() ? text[i + 1] : 0);
    const bool control = (byte < ' ' && byte != '\n' && byte != '\t') || byte == 127;
    if (control || (byte == 0xC2 && next >= 0x80 && next < 0xA0)) text[i] = '?';
  }
  return text;
}

// The errno of a failed write of a result to stdout; 0 if all writes succeeded.
int g_output_error = 0;

}  // namespace

void PrintResult(const Globals& globals, const std::string& text, const nlohmann::json& document) {
  // Arguments and paths need not be UTF-8, but JSON must be.
  std::string out =
      globals.json ? document.dump(2, ' ', false, nlohmann::json::error_handler_t::replace) + "\n"
                   : Printable(text);
  if (!out.empty() && out.back() != '\n') out += '\n';
  FILE* stream = globals.result_on_stderr ? stderr : stdout;
  const bool written =
      std::fwrite(out.data(), 1, out.size(), stream) == out.size() && std::fflush(stream) == 0;
  if (!written && stream == stdout) g_output_error = errno;
}

Status FinishOutput() {
  // The parser prints --help through stdio.
  if (std::fflush(stdout) != 0 && g_output_error == 0) g_output_error = errno;
  if (g_output_error == 0 && std::ferror(stdout) != 0) g_output_error = EIO;
  if (g_output_error == 0) return {};
  return FailErrno(g_output_error, "cannot write the result to standard output");
}

void PrintStderr(const std::string& text) { std::fwrite(text.data(), 1, text.size(), stderr); }

nlohmann::json ToJson(const Error& error) {
  return {
      {"code", CodeName(error.code)},   {"domain", DomainName(error.domain)}, {"raw", error.raw},
      {"message", error.message},       {"context", error.context},           {"hint", error.hint},
      {"not_undone", error.not_undone}, {"exit_code", ExitCode(error)}};
}

void PrintError(const Globals& globals, const Error& error) {
  std::string text = "stasis: " + Printable(error.ToString());
  if (text.back() != '.') text += '.';
  if (!error.hint.empty()) {
    std::string hint = Printable(error.hint);
    if (hint.back() != '.' && hint.back() != '?' && hint.back() != '\n') hint += '.';
    text += "\n" + hint;
  }
  text += '\n';
  std::fwrite(text.data(), 1, text.size(), stderr);
  if (globals.json) PrintResult(globals, "", {{"error", ToJson(error)}});
}

std::string DidYouMean(const std::string& typed, const std::vector<std::string>& known) {
  const std::string closest = ClosestName(typed, known);
  return closest.empty() ? "" : "Did you mean `" + closest + "`?";
}

std::string FormatBytes(uint64_t bytes) {
  static constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024 && unit + 1 < std::size(kUnits)) {
    value /= 1024;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string FormatSeconds(double seconds) {
  return seconds < 0.1 ? fmt::format("{:.1f} ms", seconds * 1e3) : fmt::format("{:.2f} s", seconds);
}

std::string FormatProgress(uint64_t done, uint64_t total, double seconds) {
  std::string text = FormatBytes(done) + " of " + FormatBytes(total);
  const double rate = seconds > 0 ? static_cast<double>(done) / seconds : 0;
  if (rate > 0) text += fmt::format(", {}/s", FormatBytes(static_cast<uint64_t>(rate)));
  if (rate > 0 && total > done) {
    text += ", " + FormatSeconds(static_cast<double>(total - done) / rate) + " left";
  }
  return text;
}

}  // namespace stasis::cli
