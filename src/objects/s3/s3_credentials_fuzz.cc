// Fuzzes the credential parsers, both for the answers of credential services and for the files in
// ~/.aws. An answer without a key must be rejected.
#include "base/fuzz_input.h"
#include "objects/s3/credential_files.h"
#include "objects/s3/credential_services.h"
#include "objects/s3/credentials.h"

namespace stasis::objects::s3 {
namespace {

void CheckFound(const Result<Credentials>& found) {
  if (!found) {
    FuzzCheck(found.error().message.size() < 1000);
    return;
  }
  FuzzCheck(!found->key.key_id.empty() && !found->key.secret.empty());
  if (!CheckCredentials(*found)) return;
  FuzzCheck(found->key.token.find_first_of("\r\n") == std::string::npos);
}

// Names and values are parts of one line, without spaces at their ends.
void CheckIniText(const std::string& text) {
  FuzzCheck(text.find('\n') == std::string::npos);
  FuzzCheck(text.empty() || (text.front() != ' ' && text.back() != ' '));
}

void CheckIni(const IniFile& file) {
  for (const auto& [section, settings] : file) {
    CheckIniText(section);
    for (const auto& [name, value] : settings) {
      CheckIniText(name);
      CheckIniText(value);
      FuzzCheck(name.find('=') == std::string::npos);
    }
  }
}

}  // namespace
}  // namespace stasis::objects::s3

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace stasis::objects::s3;  // NOLINT(google-build-using-namespace)
  const std::string text(reinterpret_cast<const char*>(data), size);
  CheckFound(ParseCredentialJson(text, "fuzz"));
  for (const long status : {200L, 400L}) {
    HttpAnswer answer;
    answer.status = status;
    answer.body = text;
    const auto found = ParseStsAnswer(answer, "fuzz");
    stasis::FuzzCheck(!found || (status == 200 && found->expires));
    CheckFound(found);
  }
  CheckIni(ParseIni(text));
  (void)ParseTime(text);
  return 0;
}
