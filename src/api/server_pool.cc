#include "api/server_pool.h"

#include <fmt/format.h>
#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <algorithm>

#include "api/headers.h"
#include "base/log.h"
#include "base/thread.h"

namespace stasis::api {
namespace {

// Limits of one server.
constexpr int kMaxStreams = 256;  // of one connection
constexpr int kMaxThreads = 16;
constexpr size_t kMaxBytes = 256u << 20;

void SetServing(grpc::Server& server, bool serving) {
  if (auto* health = server.GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(serving);
  }
}

}  // namespace

ServerPool::ServerPool(DaemonContext& daemon) : daemon_(daemon) {
  daemon_.operations.OnDrain([this] { UpdateHealth(); });
}

void ServerPool::UpdateHealth() {
  std::lock_guard lock(mutex_);
  const bool serving = !daemon_.operations.draining();
  for (auto& [caller, entry] : servers_) SetServing(*entry.server, serving);
  for (Entry& entry : shared_) SetServing(*entry.server, serving);
}

Result<ServerPool::Entry> ServerPool::Start(grpc::ServerBuilder& builder, IdentifyCaller identify) {
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  // Bounds a caller's share of threads and memory: reflection takes a thread for each stream.
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMaxThreads);
  quota.Resize(kMaxBytes);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(4 << 20);
  Entry entry;
  entry.service = MakeService(daemon_, std::move(identify));
  builder.RegisterService(entry.service.get());
  entry.server = builder.BuildAndStart();
  if (entry.server == nullptr) return Fail(Code::kInternal, "gRPC cannot start a server");
  if (auto* health = entry.server->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(v1::Stasis::service_full_name(), true);
  }
  entry.last_connection = Clock::now();
  return entry;
}

Result<grpc::Server*> ServerPool::ServerFor(const Caller& caller) {
  std::lock_guard lock(mutex_);
  if (auto found = servers_.find(caller); found != servers_.end()) {
    found->second.last_connection = Clock::now();
    return found->second.server.get();
  }
  STASIS_TRY(MakeRoomFor(caller));
  grpc::ServerBuilder builder;
  auto identify = [caller](const grpc::CallbackServerContext&) -> Result<Caller> {
    STASIS_TRY(CheckServed(caller));
    return caller;
  };
  STASIS_ASSIGN(Entry entry, Start(builder, identify));
  if (daemon_.operations.draining()) SetServing(*entry.server, false);
  return servers_.emplace(caller, std::move(entry)).first->second.server.get();
}

Result<grpc::Server*> ServerPool::AddShared(grpc::ServerBuilder& builder, IdentifyCaller identify) {
  std::lock_guard lock(mutex_);
  STASIS_ASSIGN(Entry entry, Start(builder, std::move(identify)));
  shared_.push_back(std::move(entry));
  return shared_.back().server.get();
}

Status ServerPool::MakeRoomFor(const Caller& caller) {
  const auto of_account = std::count_if(servers_.begin(), servers_.end(), [&](const auto& entry) {
    return entry.first.account == caller.account;
  });
  if (static_cast<size_t>(of_account) >= kMaxServersOfUser && !CloseIdleServer(&caller.account)) {
    return Fail(Code::kResourceExhausted,
                fmt::format("user {} has calls with {} different credentials in progress",
                            caller.account, of_account));
  }
  const size_t most = IsPrivileged(caller) ? kMaxServers : kMaxServers - kReservedServers;
  if (servers_.size() >= most && !CloseIdleServer(nullptr)) {
    return Fail(
        Code::kResourceExhausted,
        fmt::format("callers with {} different credentials are connected", servers_.size()));
  }
  return {};
}

bool ServerPool::CloseIdleServer(const uid_t* account) {
  auto oldest = servers_.end();
  for (auto at = servers_.begin(); at != servers_.end(); ++at) {
    // Servers of privileged callers are never closed to make room for others.
    if (account != nullptr ? at->first.account != *account : IsPrivileged(at->first)) continue;
    if (oldest != servers_.end() && oldest->second.last_connection <= at->second.last_connection)
      continue;
    if (!daemon_.operations.HasCalls(at->first)) oldest = at;
  }
  if (oldest == servers_.end()) return false;
  log::Write(log::Level::kDebug, "an idle server was closed to make room for another caller",
             {{"uid", uint64_t{oldest->first.uid}}});
  auto entry = std::make_shared<Entry>(std::move(oldest->second));
  servers_.erase(oldest);
  // Runs in another thread, because Shutdown() waits for a call that may just have begun.
  auto thread = Thread::Start([entry] {
    entry->server->Shutdown(std::chrono::system_clock::now());
    entry->server.reset();
  });
  if (thread) {
    std::move(*thread).Detach();
  } else {
    // The server stays, but gets no new connections.
    shared_.push_back(std::move(*entry));
  }
  return true;
}

}  // namespace stasis::api
