#include "repository/sent_images.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <climits>
#include <cstdlib>
#include <iterator>
#include <map>
#include <optional>
#include <string_view>
#include <utility>

#include "base/fd.h"
#include "base/file.h"
#include "repository/images.h"
#include "repository/layout.h"
#include "store/beneath.h"
#include "store/store_folder.h"

namespace stasis::repository {
namespace {

constexpr char kRepositoryFile[] = "repository";
constexpr char kAbandonedFile[] = "abandoned";
constexpr size_t kMaxIdBytes = 100;
constexpr unsigned long kLastImage = ULONG_MAX;

// Images of a migration, by the number of the round, or kLastImage.
using SentRounds = std::map<unsigned long, std::string>;

// Adds `image` if it is one of the migration: a number or "last" follows the prefix and "-".
void AddRound(const std::string& prefix, const std::string& image, SentRounds& rounds) {
  if (!image.starts_with(prefix + "-")) return;
  const std::string rest = image.substr(prefix.size() + 1);
  if (rest == "last") {
    rounds[kLastImage] = image;
  } else if (!rest.empty() && rest.find_first_not_of("0123456789") == rest.npos) {
    rounds[std::strtoul(rest.c_str(), nullptr, 10)] = image;
  }
}

Result<SentRounds> ListSent(const Repository& repository, const std::string& prefix,
                            const objects::CallOptions& call) {
  STASIS_ASSIGN(const auto objects, repository.List(kImagesPrefix + prefix + "-", call));
  SentRounds rounds;
  for (const auto& object : objects) {
    if (const auto name = ParseImageKey(object.key)) AddRound(prefix, *name, rounds);
  }
  return rounds;
}

// Deletes the images and adds their names to `deleted`.
Status DeleteSent(const Repository& repository, const SentRounds& rounds,
                  const objects::CallOptions& call, std::vector<std::string>& deleted) {
  for (const auto& [round, image] : rounds) {
    Status gone = DeleteImage(repository, image, call);
    if (!gone && gone.error().code != Code::kNotFound) return gone;
    deleted.push_back(image);
  }
  return {};
}

// Returns whether the store has the image of this round, or a newer image of the migration.
Result<bool> HasLocalCopy(const std::string& store, const std::string& prefix,
                          unsigned long round) {
  STASIS_ASSIGN(const auto images, store::ListImages(store));
  SentRounds here;
  for (const std::string& image : images) AddRound(prefix, image, here);
  return here.lower_bound(round) != here.end();
}

// Returns whether no request of a killed migration can still be in flight. The first call for a
// note returns false and records the current time.
Result<bool> IsLongAbandoned(const std::string& note, int64_t now_ms) {
  const std::string path = note + "/" + kAbandonedFile;
  struct stat st;
  if (::stat(path.c_str(), &st) == 0) {
    const int64_t since_ms = int64_t{st.st_mtim.tv_sec} * 1000 + st.st_mtim.tv_nsec / 1'000'000;
    return now_ms - since_ms >= std::chrono::milliseconds(kLatePush).count();
  }
  if (errno != ENOENT) return FailErrno(errno, "stat " + path);
  STASIS_TRY(WriteFileDurably(path, ""));
  return false;
}

// Returns the prefix of the names of the images that a note records.
std::string PrefixIn(const std::string& note) {
  return note.substr(1, note.rfind(fmt::format(".{}-", store::kSent)) - 1);
}

// A note that no migration uses. It is locked as long as this object exists.
struct AbandonedNote {
  UniqueFd folder;
  std::optional<std::string> repository;  // its id; absent: the note was left before the first push
};

// Returns nothing if the migration is in progress, or the note cannot be read.
std::optional<AbandonedNote> OpenAbandoned(int store_fd, const std::string& name) {
  auto folder = store::OpenBeneath(store_fd, name, O_RDONLY | O_DIRECTORY);
  if (!folder || !store::LockFolder(folder->get(), store::LockKind::kExclusive, name)) return {};
  if (!store::IsSameFolder(store_fd, name, folder->get())) return {};
  auto id = ReadFileAt(folder->get(), kRepositoryFile, kMaxIdBytes);
  if (!id && id.error().code != Code::kNotFound) return {};
  AbandonedNote note{std::move(*folder), {}};
  if (id) note.repository = std::move(*id);
  return note;
}

// A store may have the notes of several users, who have different repositories.
bool IsOwn(const AbandonedNote& note) {
  struct stat st;
  return ::fstat(note.folder.get(), &st) == 0 && st.st_uid == ::geteuid();
}

class SentSweep {
 public:
  SentSweep(const std::string& store, const Repository& repository,
            const objects::CallOptions& call, int64_t now_ms)
      : store_(store), repository_(repository), call_(call), now_ms_(now_ms) {}

  Result<SweptImages> Run() {
    if (!PathExists(store_)) return swept_;
    auto folder = store::OpenFolder(store_);
    if (!folder) return FailedIn(store_, std::move(folder).error());
    const auto names = ListDir(store_);
    if (!names) return FailedIn(store_, names.error());
    for (const std::string& name : *names) {
      if (!store::IsHiddenName(name, store::kSent)) continue;
      Status done = SweepNote(folder->get(), name);
      if (done) continue;
      if (done.error().code == Code::kCancelled) return Fail(std::move(done).error());
      swept_.failures.push_back({PrefixIn(name), std::move(done).error()});
    }
    return swept_;
  }

 private:
  SweptImages FailedIn(const std::string& what, Error error) {
    swept_.failures.push_back({what, std::move(error)});
    return swept_;
  }

  // Does nothing if the migration is in progress, or used another repository.
  Status SweepNote(int store_fd, const std::string& name) {
    const auto note = OpenAbandoned(store_fd, name);
    if (!note) return {};
    if (note->repository) {
      if (*note->repository != repository_.info().id.Hex()) return {};
      STASIS_ASSIGN(const bool all_gone, DeleteAbandoned(PrefixIn(name)));
      STASIS_ASSIGN(const bool is_old, IsLongAbandoned(store_ + "/" + name, now_ms_));
      if (!all_gone || !is_old) return {};
    }
    return store::RemoveHidden(store_fd, store_, name);
  }

  // Returns false if the newest image was kept.
  Result<bool> DeleteAbandoned(const std::string& prefix) {
    STASIS_ASSIGN(SentRounds rounds, ListSent(repository_, prefix, call_));
    if (rounds.empty()) return true;
    const auto newest = std::prev(rounds.end());
    STASIS_ASSIGN(const bool has_copy, HasLocalCopy(store_, prefix, newest->first));
    if (!has_copy) {
      swept_.kept.push_back(newest->second);
      rounds.erase(newest);
    }
    STASIS_TRY(DeleteSent(repository_, rounds, call_, swept_.deleted));
    return has_copy;
  }

  const std::string& store_;
  const Repository& repository_;
  const objects::CallOptions& call_;
  const int64_t now_ms_;
  SweptImages swept_;
};

}  // namespace

Result<SentImages> SentImages::Begin(const std::string& store, const std::string& prefix,
                                     const Repository& repository) {
  STASIS_ASSIGN(store::Hidden note, store::MakeHidden(store, prefix, store::kSent));
  STASIS_TRY(WriteFileDurably(fmt::format("{}/{}/{}", store, note.name, kRepositoryFile),
                              repository.info().id.Hex()));
  STASIS_TRY(FsyncPath(store));
  return SentImages(store, prefix, std::move(note));
}

Status SentImages::Delete(const Repository& repository, bool keeps_last,
                          const objects::CallOptions& call) {
  STASIS_ASSIGN(SentRounds rounds, ListSent(repository, prefix_, call));
  if (keeps_last) rounds.erase(kLastImage);
  std::vector<std::string> deleted;
  STASIS_TRY(DeleteSent(repository, rounds, call, deleted));
  if (keeps_last || push_failed_) return {};
  STASIS_ASSIGN(const UniqueFd folder, store::OpenFolder(store_));
  return store::RemoveHidden(folder.get(), store_, note_.name);
}

Result<SweptImages> SweepSentImages(const std::string& store, const Repository& repository,
                                    const objects::CallOptions& call, int64_t now_ms) {
  return SentSweep(store, repository, call, now_ms).Run();
}

Result<std::vector<std::string>> ForgetSentImages(const std::string& store,
                                                  const std::vector<Id128>& known) {
  std::vector<std::string> forgotten;
  if (!PathExists(store)) return forgotten;
  STASIS_ASSIGN(const UniqueFd folder, store::OpenFolder(store));
  STASIS_ASSIGN(const auto names, ListDir(store));
  const auto is_known = [&](const std::string& repository) {
    return std::any_of(known.begin(), known.end(),
                       [&](const Id128& id) { return id.Hex() == repository; });
  };
  for (const std::string& name : names) {
    if (!store::IsHiddenName(name, store::kSent)) continue;
    const auto note = OpenAbandoned(folder.get(), name);
    if (!note || !IsOwn(*note)) continue;
    if (note->repository && is_known(*note->repository)) continue;
    STASIS_TRY(store::RemoveHidden(folder.get(), store, name));
    forgotten.push_back(name);
  }
  return forgotten;
}

}  // namespace stasis::repository
