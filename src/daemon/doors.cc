#include "daemon/doors.h"

#include <fmt/format.h>
#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <algorithm>
#include <system_error>
#include <thread>

#include "base/log.h"

namespace stasis::daemon {
namespace {

// Of one door.
constexpr int kMaxStreams = 256;  // of a connection
constexpr int kMaxThreads = 16;
constexpr size_t kMaxBytes = 256u << 20;

void TellHealth(grpc::Server& server, bool serving) {
  if (auto* health = server.GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(serving);
  }
}

}  // namespace

Doors::Doors(House& house) : house_(house) {
  house_.operations.OnDrain([this] { SetHealth(); });
}

void Doors::SetHealth() {
  std::lock_guard lock(mutex_);
  const bool serving = !house_.operations.draining();
  for (auto& [caller, door] : doors_) TellHealth(*door.server, serving);
  for (Door& door : others_) TellHealth(*door.server, serving);
}

Result<Doors::Door> Doors::Make(grpc::ServerBuilder& builder, WhoCalls who) {
  builder.AddChannelArgument(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  builder.AddChannelArgument(GRPC_ARG_MAX_CONCURRENT_STREAMS, kMaxStreams);
  builder.AddChannelArgument(GRPC_ARG_SERVER_HANDSHAKE_TIMEOUT_MS, kHandshakeMs);
  // Reflection has a thread for each stream; a caller cannot have more of them, nor of our memory,
  // than this.
  grpc::ResourceQuota quota;
  quota.SetMaxThreads(kMaxThreads);
  quota.Resize(kMaxBytes);
  builder.SetResourceQuota(quota);
  builder.SetMaxReceiveMessageSize(4 << 20);
  Door door;
  door.service = MakeService(house_, std::move(who));
  builder.RegisterService(door.service.get());
  door.server = builder.BuildAndStart();
  if (door.server == nullptr) return Fail(Code::kInternal, "cannot start a server");
  if (auto* health = door.server->GetHealthCheckService(); health != nullptr) {
    health->SetServingStatus(v1::Stasis::service_full_name(), true);
  }
  door.came = Clock::now();
  return door;
}

Result<grpc::Server*> Doors::For(const Caller& caller) {
  std::lock_guard lock(mutex_);
  if (auto found = doors_.find(caller); found != doors_.end()) {
    found->second.came = Clock::now();
    return found->second.server.get();
  }
  STASIS_TRY(MakeRoom(caller));
  grpc::ServerBuilder builder;
  auto who = [caller](const grpc::CallbackServerContext&) -> Result<Caller> {
    STASIS_TRY(CheckServed(caller));
    return caller;
  };
  STASIS_ASSIGN(Door door, Make(builder, who));
  if (house_.operations.draining()) TellHealth(*door.server, false);
  return doors_.emplace(caller, std::move(door)).first->second.server.get();
}

Result<grpc::Server*> Doors::Add(grpc::ServerBuilder& builder, WhoCalls who) {
  std::lock_guard lock(mutex_);
  STASIS_ASSIGN(Door door, Make(builder, std::move(who)));
  others_.push_back(std::move(door));
  return others_.back().server.get();
}

Status Doors::MakeRoom(const Caller& caller) {
  const auto of_account = std::count_if(doors_.begin(), doors_.end(), [&](const auto& door) {
    return door.first.account == caller.account;
  });
  if (static_cast<size_t>(of_account) >= kMaxOfAccount && !CloseOneThatIsIdle(&caller.account)) {
    return Fail(
        Code::kResourceExhausted,
        fmt::format("user {} calls with {} kinds of rights at once", caller.account, of_account));
  }
  const size_t most = HasRoomKept(caller) ? kMax : kMax - kKept;
  if (doors_.size() >= most && !CloseOneThatIsIdle(nullptr)) {
    return Fail(Code::kResourceExhausted,
                fmt::format("{} different users call at once", doors_.size()));
  }
  return {};
}

bool Doors::CloseOneThatIsIdle(const uid_t* account) {
  auto longest = doors_.end();
  for (auto at = doors_.begin(); at != doors_.end(); ++at) {
    // Who has room kept for him makes none for others.
    if (account != nullptr ? at->first.account != *account : HasRoomKept(at->first)) continue;
    if (longest != doors_.end() && longest->second.came <= at->second.came) continue;
    if (!house_.operations.HasCalls(at->first)) longest = at;
  }
  if (longest == doors_.end()) return false;
  log::Write(log::Level::kDebug, "a caller who does nothing makes room",
             {{"uid", uint64_t{longest->first.uid}}});
  auto door = std::make_shared<Door>(std::move(longest->second));
  doors_.erase(longest);
  // It waits for a call that has come in this moment: an operation, perhaps.
  try {
    std::thread([door] {
      door->server->Shutdown(std::chrono::system_clock::now());
      door->server.reset();
    }).detach();
  } catch (const std::system_error&) {
    // Then it stays, and nobody comes to it any more.
    others_.push_back(std::move(*door));
  }
  return true;
}

}  // namespace stasis::daemon
