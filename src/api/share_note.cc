#include "api/share_note.h"

#include <memory>

#include "api/waiting_reactor.h"

namespace stasis::api {
namespace {

grpc::ServerUnaryReactor* AnswerNow(grpc::CallbackServerContext& context, const Status& status) {
  auto* reactor = context.DefaultReactor();
  reactor->Finish(status ? grpc::Status::OK : ToStatus(context, status.error()));
  return reactor;
}

Status Note(DaemonContext& daemon, const Result<Caller>& caller,
            grpc::CallbackServerContext& context) {
  if (!caller) return Fail(caller.error());
  STASIS_ASSIGN(const auto work, WorkOf(daemon, *caller, context));
  return daemon.share->Note(*caller, work);
}

}  // namespace

grpc::ServerUnaryReactor* NoteShareOf(DaemonContext& daemon, const IdentifyCaller& identify,
                                      grpc::CallbackServerContext& context,
                                      const v1::NoteShareRequest& request) {
  const auto caller = identify(context);
  const Status noted = Note(daemon, caller, context);
  if (!noted || !request.starting()) return AnswerNow(context, noted);
  auto call = daemon.operations.Begin(*caller, "NoteShare", /*operation=*/false, "");
  if (!call) return AnswerNow(context, Fail(std::move(call).error()));
  auto* reactor = new WaitingReactor(daemon.operations, std::move(*call), {});
  daemon.share->AskRoom(request.bytes(), [handle = reactor->handle(), &context](Status room) {
    handle->End([&] { return room ? grpc::Status::OK : ToStatus(context, room.error()); });
  });
  return reactor;
}

}  // namespace stasis::api
