#include "bench/remote_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <memory>

#include "api/local_images.h"
#include "api/repository_choice.h"
#include "base/parallel.h"
#include "base/secret.h"
#include "bench/remote_measure.h"
#include "bench/remote_report.h"
#include "cli/transfer.h"
#include "repository/limits.h"

namespace stasis::bench {
namespace {

// Limits for the client that measures plain objects.
constexpr int kPlainConnections = 64;
constexpr int kMaxPlainEngines = 8;

// Opens the repository a second time, with more threads and connections.
Result<std::unique_ptr<repository::OpenedRepository>> OpenForPlain(
    const api::Call& call, const v1::RepositoryChoice& choice) {
  STASIS_ASSIGN(const auto registration, api::FindRepository(call, choice));
  repository::Access access = api::AccessOf(call);
  access.http.connections = kPlainConnections;
  access.s3_engines = std::min(static_cast<int>(ProcessorCount()), kMaxPlainEngines);
  return repository::OpenedRepository::Open(registration, access);
}

Result<RemoteMeasurements> MeasureOpened(const cli::Globals& globals,
                                         const v1::BenchRequest& request, const api::Call& call,
                                         const repository::OpenedRepository& opened,
                                         const std::string& store) {
  STASIS_ASSIGN(const BlockSecret secret, NamingSecretOf(call.paths));
  const store::UnitNames names(secret);
  STASIS_ASSIGN(const auto plain, OpenForPlain(call, request.remote()));
  RemoteOptions options{.repository = opened.repository(),
                        .plain = plain->store(),
                        .repository_name = request.remote().name(),
                        .store_path = store,
                        .names = names};
  options.packs.bytes = call.settings.pack_bytes;
  options.size_bytes = request.size_bytes();
  options.object_bytes = std::min(request.size_bytes(), repository::kMaxPackBytes);
  options.rounds = request.rounds();
  options.stop = call.stop;
  const bool shows = !globals.quiet && ::isatty(STDERR_FILENO) != 0;
  if (shows) {
    options.progress = [](const std::string& what) {
      cli::PrintStderr(fmt::format("\r\033[K{} ...", what));
    };
  }
  auto found = MeasureRemote(options);
  if (shows) cli::PrintStderr("\r\033[K");
  return found;
}

}  // namespace

Status RunRemoteBench(const cli::Globals& globals, const v1::BenchRequest& request) {
  STASIS_ASSIGN(cli::RepositoryCall repository_call, cli::RepositoryCall::Open(globals));
  const api::Call& call = repository_call.call();
  STASIS_ASSIGN(const std::string store, api::StoreOf(call, request.store()));
  STASIS_ASSIGN(const auto opened, api::OpenRepository(call, request.remote()));
  STASIS_ASSIGN(const RemoteMeasurements found,
                Annotate(MeasureOpened(globals, request, call, *opened, store), "cannot measure"));
  const repository::Registration& registration = opened->registration();
  const RemoteSubject subject{registration.name, registration.location, registration.encrypted,
                              store};
  cli::PrintResult(globals, RemoteText(subject, found), RemoteJson(subject, found));
  return cli::FinishOutput();
}

}  // namespace stasis::bench
