#include "jobs/sqlite.h"

#include <sqlite3.h>
#include <unistd.h>

#include <cerrno>

#include "base/deadline.h"

namespace stasis::jobs {
namespace {

// synchronous=FULL with a truncated journal: a commit is on disk when it returns.
constexpr char kSettings[] =
    "PRAGMA journal_mode = TRUNCATE;"
    "PRAGMA synchronous = FULL;"
    "PRAGMA foreign_keys = ON;"
    "PRAGMA trusted_schema = OFF;"
    "PRAGMA cell_size_check = ON;";

// Values are far smaller than this; a damaged length must not cause a large allocation.
constexpr int kMaxValueBytes = 16 << 20;

int BindValue(sqlite3_stmt* statement, int at, const SqlValue& value) {
  struct Binder {
    sqlite3_stmt* statement;
    int at;
    int operator()(std::monostate) const { return sqlite3_bind_null(statement, at); }
    int operator()(int64_t number) const { return sqlite3_bind_int64(statement, at, number); }
    int operator()(double number) const { return sqlite3_bind_double(statement, at, number); }
    int operator()(const std::string& text) const {
      return sqlite3_bind_text64(statement, at, text.data(), text.size(), SQLITE_TRANSIENT,
                                 SQLITE_UTF8);
    }
    int operator()(const Blob& blob) const {
      return sqlite3_bind_blob64(statement, at, blob.bytes.data(), blob.bytes.size(),
                                 SQLITE_TRANSIENT);
    }
  };
  return std::visit(Binder{statement, at}, value);
}

std::string DamagedHint(const std::string& path) {
  return "Running programs and images are not affected; name programs by their process ids. "
         "Restore "
         "the database from a copy, or extract what is readable with `sqlite3 " +
         path + " .recover`. Or move it and " + path +
         "-journal away: Stasis then creates an empty database and no longer lists the jobs";
}

}  // namespace

// The busy handler: waits for another writer, with a retry every millisecond or two. SQLite's own
// handler sleeps for up to 100 ms and rarely hits the gap between two writes of a busy writer.
struct Sqlite::Patience {
  int timeout_ms = 0;
  Deadline deadline;

  static int Wait(void* self, int tries) {
    auto& patience = *static_cast<Patience*>(self);
    if (tries == 0)
      patience.deadline = Deadline::In(std::chrono::milliseconds(patience.timeout_ms));
    if (patience.deadline.passed()) return 0;
    // Spreads the retries of several processes.
    const int64_t spread = (tries + ::getpid()) % 4;
    ::usleep(static_cast<useconds_t>(500 + 500 * spread));
    return 1;
  }
};
void Sqlite::Forget::operator()(Patience* patience) const { delete patience; }

void Statement::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }
void Sqlite::Close::operator()(sqlite3* connection) const { sqlite3_close_v2(connection); }

Result<bool> Statement::Next() {
  switch (sqlite3_step(statement_.get())) {
    case SQLITE_ROW:
      return true;
    case SQLITE_DONE:
      return false;
    default:
      return Fail(connection_->LastError());
  }
}

bool Statement::IsNull(int column) const {
  return sqlite3_column_type(statement_.get(), column) == SQLITE_NULL;
}
int64_t Statement::Int(int column) const { return sqlite3_column_int64(statement_.get(), column); }
double Statement::Real(int column) const { return sqlite3_column_double(statement_.get(), column); }
std::string Statement::Bytes(int column) const {
  const void* bytes = sqlite3_column_blob(statement_.get(), column);
  const int size = sqlite3_column_bytes(statement_.get(), column);
  return bytes == nullptr ? std::string()
                          : std::string(static_cast<const char*>(bytes), static_cast<size_t>(size));
}

Error Sqlite::Damaged(const std::string& what) const {
  Error error{Code::kDataLoss};
  error.message = "the job database " + path_ + " is damaged: " + what;
  return std::move(error).WithHint(DamagedHint(path_));
}

Error Sqlite::LastError() const {
  const int code = sqlite3_errcode(connection_.get());
  const std::string words = sqlite3_errmsg(connection_.get());
  const int error_number = sqlite3_system_errno(connection_.get());
  Error error{Code::kInternal};
  error.message = "the job database " + path_ + ": " + words;
  switch (code & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB:
      return Damaged(words);
    case SQLITE_BUSY:
      error.code = Code::kAborted;
      error.message = "the job database " + path_ + " is held by another process";
      return std::move(error).WithHint("try again; `fuser -v " + path_ + "` shows that process");
    case SQLITE_FULL:
      error.code = Code::kResourceExhausted;
      error.message = "there is no space left for the job database " + path_;
      return std::move(error).WithHint("free space on its file system, and try again");
    case SQLITE_READONLY:
    case SQLITE_PERM:
      error.code = Code::kPermissionDenied;
      return error;
    case SQLITE_CANTOPEN:
    case SQLITE_IOERR:
      if (error_number == 0) return error;
      error = ErrnoError(error_number, "use the job database " + path_);
      if (error_number == ENOLCK) {
        error.hint =
            "its file system does not support file locks; choose another folder with "
            "STASIS_STATE_DIR";
      }
      return error;
    default:
      return error;
  }
}

Result<Sqlite> Sqlite::Open(const std::string& path, bool create) {
  Sqlite opened;
  opened.path_ = path;
  sqlite3* connection = nullptr;
  const int flags = SQLITE_OPEN_READWRITE | (create ? SQLITE_OPEN_CREATE : 0);
  const int code = sqlite3_open_v2(path.c_str(), &connection, flags, nullptr);
  opened.connection_.reset(connection);  // the connection must be closed even after an error
  if (connection == nullptr)
    return Fail(Code::kResourceExhausted, "out of memory while opening the job database");
  if (code != SQLITE_OK) return Fail(opened.LastError());
  sqlite3_db_config(connection, SQLITE_DBCONFIG_DEFENSIVE, 1, nullptr);
  sqlite3_limit(connection, SQLITE_LIMIT_LENGTH, kMaxValueBytes);
  opened.patience_.reset(new Patience{kBusyTimeoutMs, {}});
  sqlite3_busy_handler(connection, Patience::Wait, opened.patience_.get());
  STASIS_TRY(opened.RunScript(kSettings));
  return opened;
}

void Sqlite::SetBusyTimeout(int timeout_ms) { patience_->timeout_ms = timeout_ms; }

Result<Statement> Sqlite::Query(const std::string& sql, const std::vector<SqlValue>& values) const {
  sqlite3_stmt* prepared = nullptr;
  const int code = sqlite3_prepare_v2(connection_.get(), sql.c_str(),
                                      static_cast<int>(sql.size() + 1), &prepared, nullptr);
  Statement statement;
  statement.statement_.reset(prepared);
  statement.connection_ = this;
  if (code != SQLITE_OK) return Fail(LastError());
  for (size_t i = 0; i < values.size(); ++i) {
    if (BindValue(prepared, static_cast<int>(i) + 1, values[i]) != SQLITE_OK) {
      return Fail(LastError());
    }
  }
  return statement;
}

Status Sqlite::Run(const std::string& sql, const std::vector<SqlValue>& values) {
  STASIS_ASSIGN(Statement statement, Query(sql, values));
  STASIS_TRY(statement.Next());
  return {};
}

Status Sqlite::RunScript(const std::string& sql) {
  if (sqlite3_exec(connection_.get(), sql.c_str(), nullptr, nullptr, nullptr) != SQLITE_OK) {
    return Fail(LastError());
  }
  return {};
}

Result<int64_t> Sqlite::Number(const std::string& sql) const {
  STASIS_ASSIGN(Statement statement, Query(sql));
  STASIS_ASSIGN(bool row, statement.Next());
  return row ? statement.Int(0) : 0;
}

int64_t Sqlite::changed() const { return sqlite3_changes64(connection_.get()); }

}  // namespace stasis::jobs
