#include "jobs/database.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdio>

#include "base/clock.h"
#include "base/file.h"
#include "jobs/locks.h"
#include "jobs/record.h"

namespace stasis::jobs {
namespace {

// The name of a database that is being created. If its creator is killed, the store removes it like
// all files whose name begins with ".new-".
constexpr char kUnfinished[] = "/.new-jobs.db";
constexpr char kJournal[] = "-journal";
constexpr size_t kMaxAccountBytes = 1 << 20;

constexpr char kJobColumns[] =
    "id, argv, cwd, log, agent, uid, gid, created_ms, changed_ms, seen_state, seen_boot_id, "
    "seen_shim_pid, seen_shim_start, seen_root_pid, seen_root_start, seen_log_device, "
    "seen_log_inode, seen_code, seen_signal, seen_ended_ms, seen_image, share";
constexpr char kCheckpointColumns[] =
    "kind, image, name, time_ms, bytes, written_bytes, seconds, account, copy_repository, "
    "copy_name, copy_plain";
constexpr char kCheckpointColumnsOfList[] =
    "kind, image, name, time_ms, bytes, written_bytes, seconds, NULL, copy_repository, copy_name, "
    "copy_plain";

std::string EncodeArguments(const std::vector<std::string>& argv) {
  std::string bytes;
  for (const std::string& argument : argv) bytes.append(argument).push_back('\0');
  return bytes;
}

std::vector<std::string> DecodeArguments(const std::string& bytes) {
  std::vector<std::string> argv;
  for (size_t at = 0; at < bytes.size();) {
    size_t end = std::min(bytes.find('\0', at), bytes.size());
    argv.push_back(bytes.substr(at, end - at));
    at = end + 1;
  }
  return argv;
}

int64_t Bits(uint64_t value) { return static_cast<int64_t>(value); }

// Returns the values of the columns from `seen_state` to `seen_image`, in the table's order.
std::vector<SqlValue> SeenOf(const Job& job) {
  std::vector<SqlValue> values = {std::string(StateName(job.state))};
  values.resize(12);
  if (const auto& seen = job.processes) {
    values[1] = seen->boot_id;
    values[2] = int64_t{seen->shim.pid.value};
    values[3] = Bits(seen->shim.start_time);
    values[4] = int64_t{seen->root.pid.value};
    values[5] = Bits(seen->root.start_time);
    values[6] = Bits(seen->log.device);
    values[7] = Bits(seen->log.inode);
  }
  if (const auto& ending = job.ending) {
    values[8] = int64_t{ending->code};
    values[9] = int64_t{ending->signal};
    values[10] = ending->time_ms;
  }
  if (job.dumped_image) values[11] = Blob{*job.dumped_image};
  return values;
}

bool IsPid(int64_t pid) { return pid >= 2 && pid <= kMaxPid; }
// For an adopted program, the shim's pid is 0.
bool IsShim(int64_t pid, int64_t start) { return IsPid(pid) || (pid == 0 && start == 0); }
bool IsAbsolute(const std::string& path) {
  return path.starts_with('/') && path.size() <= kMaxPathBytes;
}

bool IsWhole(const std::optional<ImageCopy>& copy) {
  return !copy || (!copy->repository.empty() && copy->repository.size() <= kMaxPathBytes &&
                   !copy->name.empty() && copy->name.size() <= kMaxPathBytes);
}

// Creates the database under a temporary name and renames it when complete. An empty file is
// therefore damaged.
Status Make(const std::string& folder, std::span<const Migration> migrations) {
  STASIS_ASSIGN(UniqueFd lock, LockStore(folder));
  const std::string path = folder + kDatabaseFile, unfinished = folder + kUnfinished;
  if (PathExists(path)) return {};  // another process was faster
  ::unlink(unfinished.c_str());
  ::unlink((unfinished + kJournal).c_str());
  {
    STASIS_ASSIGN(Sqlite sqlite, Sqlite::Open(unfinished, true));
    STASIS_TRY(MakeTables(sqlite, migrations));
  }
  if (::chmod(unfinished.c_str(), 0600) != 0) return FailErrno(errno, "chmod " + unfinished);
  STASIS_TRY(FsyncPath(unfinished));
  ::unlink((unfinished + kJournal).c_str());
  // If a removed database has left a journal, SQLite would roll it back in the new database.
  const std::string journal = path + kJournal;
  if (PathExists(journal) && ::rename(journal.c_str(), (journal + ".old").c_str()) != 0) {
    return FailErrno(errno, "rename " + journal);
  }
  if (::rename(unfinished.c_str(), path.c_str()) != 0) return FailErrno(errno, "create " + path);
  return FsyncPath(folder);
}

}  // namespace

Result<Database> Database::Open(const std::string& folder, std::span<const Migration> migrations) {
  const std::string path = folder + kDatabaseFile;
  if (!PathExists(path)) {
    STASIS_TRY(Annotate(Make(folder, migrations), "create the job database " + path));
  }
  STASIS_ASSIGN(Sqlite sqlite, Sqlite::Open(path));
  STASIS_TRY(BringUpToDate(sqlite, migrations));
  return Database(std::move(sqlite));
}

Result<Job> Database::ReadJob(const Statement& row) const {
  Job job;
  job.id = row.Bytes(0);
  auto damaged = [&](const char* what) {
    return Fail(sqlite_.Damaged(std::string(what) + " of job " + job.id));
  };
  job.argv = DecodeArguments(row.Bytes(1));
  job.cwd = row.Bytes(2);
  job.log = row.Bytes(3);
  job.agent = row.Bytes(4);
  job.uid = static_cast<uid_t>(row.Int(5));
  job.gid = static_cast<gid_t>(row.Int(6));
  job.created_ms = row.Int(7);
  job.changed_ms = row.Int(8);
  if (!IsValidId(job.id)) return damaged("the name");
  if (job.argv.empty() || job.argv.size() > kMaxArguments) return damaged("the command");
  if (!IsAbsolute(job.cwd) || !IsAbsolute(job.log)) return damaged("a path");
  if (!job.agent.empty() && !IsAbsolute(job.agent)) return damaged("the agent's path");
  auto state = ParseState(row.Bytes(9));
  if (!state) return damaged("the state");
  job.state = *state;
  if (!row.IsNull(13)) {
    const bool has_shim = !row.IsNull(11) && IsShim(row.Int(11), row.Int(12));
    if (!has_shim || !IsPid(row.Int(13))) return damaged("a process");
    auto process = [&](int column) {
      return process::ProcessId{{static_cast<pid_t>(row.Int(column))},
                                static_cast<uint64_t>(row.Int(column + 1))};
    };
    job.processes =
        Processes{process(11),
                  process(13),
                  row.Bytes(10),
                  {static_cast<uint64_t>(row.Int(15)), static_cast<uint64_t>(row.Int(16))}};
  }
  if (!row.IsNull(17)) {
    const int64_t code = row.Int(17), signal = row.Int(18);
    if (code < 0 || code > 255 || signal < 0 || signal > 127) return damaged("the end");
    job.ending = Ending{job.state == State::kDumped, static_cast<int>(code),
                        static_cast<int>(signal), row.Int(19)};
  }
  if (!row.IsNull(20)) job.dumped_image = row.Bytes(20);
  if (!row.IsNull(21)) job.share = row.Bytes(21);
  if (!job.share.empty() && !IsShareClass(job.share)) return damaged("the share class");
  return job;
}

Result<Checkpoint> Database::ReadCheckpoint(const Statement& row, int first) const {
  Checkpoint checkpoint;
  const std::string kind = row.Bytes(first);
  for (CheckpointKind known : {CheckpointKind::kDump, CheckpointKind::kSuspend}) {
    if (kind == KindName(known)) checkpoint.kind = known;
  }
  checkpoint.image = row.Bytes(first + 1);
  checkpoint.name = row.Bytes(first + 2);
  checkpoint.time_ms = row.Int(first + 3);
  checkpoint.bytes = static_cast<uint64_t>(row.Int(first + 4));
  if (!row.IsNull(first + 5)) checkpoint.written_bytes = static_cast<uint64_t>(row.Int(first + 5));
  checkpoint.seconds = row.Real(first + 6);
  checkpoint.account = row.Bytes(first + 7);
  if (!row.IsNull(first + 8)) {
    checkpoint.copy = {row.Bytes(first + 8), row.Bytes(first + 9), row.Int(first + 10) != 0};
  }
  const bool needs_image = checkpoint.kind == CheckpointKind::kDump;
  if (kind != KindName(checkpoint.kind) || (needs_image && !IsAbsolute(checkpoint.image)) ||
      row.Int(first + 4) < 0 || !std::isfinite(checkpoint.seconds) ||
      checkpoint.account.size() > kMaxAccountBytes || !IsWhole(checkpoint.copy)) {
    return Fail(sqlite_.Damaged("a checkpoint"));
  }
  return checkpoint;
}

Result<std::vector<Checkpoint>> Database::ReadCheckpoints(Statement rows) const {
  std::vector<Checkpoint> checkpoints;
  for (;;) {
    STASIS_ASSIGN(bool more, rows.Next());
    if (!more) return checkpoints;
    STASIS_ASSIGN(Checkpoint checkpoint, ReadCheckpoint(rows, 0));
    checkpoints.push_back(std::move(checkpoint));
  }
}

Result<std::vector<Database::Row>> Database::List() const {
  // Use one statement, so that the result is consistent.
  STASIS_ASSIGN(
      Statement rows,
      sqlite_.Query(std::string("SELECT ") + kJobColumns + ", " + kCheckpointColumnsOfList +
                    " FROM job LEFT JOIN checkpoint ON number = (SELECT max(number) FROM "
                    "checkpoint WHERE job = job.id AND kind = 'dump') ORDER BY id"));
  constexpr int kFirstOfCheckpoint = 22;
  std::vector<Row> listed;
  for (;;) {
    STASIS_ASSIGN(bool row, rows.Next());
    if (!row) return listed;
    Result<Job> job = ReadJob(rows);
    if (job && !rows.IsNull(kFirstOfCheckpoint)) {
      auto last = ReadCheckpoint(rows, kFirstOfCheckpoint);
      if (last) job->checkpoints.push_back(std::move(*last));
      if (!last) job = Fail(std::move(last).error());
    }
    listed.push_back({rows.Bytes(0), std::move(job)});
  }
}

Result<std::optional<Job>> Database::Find(const std::string& id) const {
  STASIS_ASSIGN(
      Statement row,
      sqlite_.Query(std::string("SELECT ") + kJobColumns + " FROM job WHERE id = ?", {id}));
  STASIS_ASSIGN(bool found, row.Next());
  if (!found) return std::optional<Job>();
  STASIS_ASSIGN(Job job, ReadJob(row));
  STASIS_ASSIGN(Statement rows, sqlite_.Query(std::string("SELECT ") + kCheckpointColumnsOfList +
                                                  " FROM checkpoint WHERE job = ? AND kind = "
                                                  "'dump' ORDER BY number",
                                              {id}));
  STASIS_ASSIGN(job.checkpoints, ReadCheckpoints(std::move(rows)));
  return std::optional<Job>(std::move(job));
}

Result<std::vector<Checkpoint>> Database::Checkpoints(const std::string& id) const {
  STASIS_ASSIGN(Statement rows, sqlite_.Query(std::string("SELECT ") + kCheckpointColumns +
                                                  " FROM checkpoint WHERE job = ? ORDER BY number",
                                              {id}));
  return ReadCheckpoints(std::move(rows));
}

Result<bool> Database::Insert(const Job& job) {
  std::vector<SqlValue> values = {job.id,           Blob{EncodeArguments(job.argv)},
                                  Blob{job.cwd},    Blob{job.log},
                                  Blob{job.agent},  int64_t{job.uid},
                                  int64_t{job.gid}, job.created_ms,
                                  job.changed_ms};
  std::vector<SqlValue> seen = SeenOf(job);
  values.insert(values.end(), seen.begin(), seen.end());
  values.push_back(job.share.empty() ? SqlValue() : SqlValue(job.share));
  STASIS_TRY(sqlite_.Run(std::string("INSERT INTO job (") + kJobColumns +
                             ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?,?) "
                             "ON CONFLICT (id) DO NOTHING",
                         values));
  if (sqlite_.changed() == 0) return false;
  for (const Checkpoint& checkpoint : job.checkpoints) {
    STASIS_TRY(AddCheckpoint(job.id, checkpoint));
  }
  return true;
}

Status Database::Remove(const std::string& id) {
  return sqlite_.Run("DELETE FROM job WHERE id = ?", {id});
}

Status Database::SaveDescription(const Job& job) {
  return sqlite_.Run(
      "UPDATE job SET argv = ?, cwd = ?, log = ?, agent = ?, changed_ms = ? WHERE id = ?",
      {Blob{EncodeArguments(job.argv)}, Blob{job.cwd}, Blob{job.log}, Blob{job.agent}, NowMs(),
       job.id});
}

Status Database::SaveSeen(const Job& job) {
  std::vector<SqlValue> values = SeenOf(job);
  // The time increases strictly, so that each write gets a different version.
  values.push_back(std::max(NowMs(), job.changed_ms + 1));
  values.push_back(job.id);
  values.push_back(job.changed_ms);
  return sqlite_.Run(
      "UPDATE job SET seen_state = ?, seen_boot_id = ?, seen_shim_pid = ?, seen_shim_start = ?, "
      "seen_root_pid = ?, seen_root_start = ?, seen_log_device = ?, seen_log_inode = ?, "
      "seen_code = ?, seen_signal = ?, seen_ended_ms = ?, seen_image = ?, changed_ms = ? "
      "WHERE id = ? AND changed_ms = ?",
      values);
}

Status Database::AddCheckpoint(const std::string& id, const Checkpoint& checkpoint) {
  const std::string kind(KindName(checkpoint.kind));
  SqlValue written, account;
  if (checkpoint.written_bytes) written = Bits(*checkpoint.written_bytes);
  if (!checkpoint.account.empty() && checkpoint.account.size() <= kMaxAccountBytes) {
    account = checkpoint.account;
  }
  SqlValue repository, name, plain;
  if (const auto& copy = checkpoint.copy) {
    repository = Blob{copy->repository};
    name = Blob{copy->name};
    plain = int64_t{copy->plain};
  }
  STASIS_TRY(sqlite_.Run(
      std::string("INSERT INTO checkpoint (job, ") + kCheckpointColumns +
          ") VALUES (?,?,?,?,?,?,?,?,?,?,?,?)",
      {id, kind, Blob{checkpoint.image}, Blob{checkpoint.name}, checkpoint.time_ms,
       Bits(checkpoint.bytes), written, checkpoint.seconds, account, repository, name, plain}));
  return sqlite_.Run(
      "DELETE FROM checkpoint WHERE job = ?1 AND kind = ?2 AND number <= (SELECT number FROM "
      "checkpoint WHERE job = ?1 AND kind = ?2 ORDER BY number DESC LIMIT 1 OFFSET ?3)",
      {id, kind, int64_t{kKeptCheckpoints}});
}

Status Database::SetAccount(const std::string& id, const std::string& image,
                            const std::string& account) {
  if (account.size() > kMaxAccountBytes) return {};
  return sqlite_.Run(
      "UPDATE checkpoint SET account = ? WHERE number = (SELECT max(number) FROM checkpoint WHERE "
      "job = ? AND kind = 'dump' AND image = ?)",
      {account, id, Blob{image}});
}

Status Database::SetCopy(const std::string& image, const ImageCopy& copy) {
  return sqlite_.Run(
      "UPDATE checkpoint SET copy_repository = ?, copy_name = ?, copy_plain = ? WHERE number = "
      "(SELECT max(number) FROM checkpoint WHERE kind = 'dump' AND image = ?)",
      {Blob{copy.repository}, Blob{copy.name}, int64_t{copy.plain}, Blob{image}});
}

}  // namespace stasis::jobs
