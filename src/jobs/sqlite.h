// SQLite with Result<T>, typed values, and errors that name the file. A connection must be used by
// one thread at a time and not across a fork.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "base/result.h"

struct sqlite3;
struct sqlite3_stmt;

namespace stasis::jobs {

// Bytes that need not be text, such as arguments and paths.
struct Blob {
  std::string bytes;
};
using SqlValue = std::variant<std::monostate, int64_t, double, std::string, Blob>;

// A statement and its current row. Columns are counted from 0. A column of an unexpected type reads
// as 0 or empty.
class Statement {
 public:
  // Advances to the next row. Returns false if there is none.
  Result<bool> Next();
  bool IsNull(int column) const;
  int64_t Int(int column) const;
  double Real(int column) const;
  std::string Bytes(int column) const;  // accepts text and blobs

 private:
  friend class Sqlite;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  std::unique_ptr<sqlite3_stmt, Finalize> statement_;
  const class Sqlite* connection_ = nullptr;
};

class Sqlite {
 public:
  // Time limit for waiting for another writer. Writes take milliseconds and a killed writer holds
  // no lock, so only a stopped process blocks others for this long.
  static constexpr int kBusyTimeoutMs = 10000;

  // Opens an existing file. With `create`, creates a missing one. Reads nothing yet: a file that is
  // not a database is reported at the first statement. Sets how a commit reaches the disk:
  // docs/decisions/jobs-in-sqlite.md.
  static Result<Sqlite> Open(const std::string& path, bool create = false);

  const std::string& path() const { return path_; }

  // Run executes one statement; Query returns its rows. `values` bind the parameters in order.
  Status Run(const std::string& sql, const std::vector<SqlValue>& values = {});
  Result<Statement> Query(const std::string& sql, const std::vector<SqlValue>& values = {}) const;
  // Runs several SQL statements, which have no parameters.
  Status RunScript(const std::string& sql);
  // Returns the first column of the first row.
  Result<int64_t> Number(const std::string& sql) const;
  // Number of rows changed by the last Run.
  int64_t changed() const;

  // Runs `body` in a transaction that takes the write lock at its start, so that concurrent
  // transactions wait for each other and never deadlock. An error of `body` rolls everything back.
  template <class Body>
  Status Write(Body body) {
    STASIS_TRY(Run("BEGIN IMMEDIATE"));
    Status status = body();
    if (status) status = Run("COMMIT");
    if (!status) (void)Run("ROLLBACK");  // SQLite may already have rolled back
    return status;
  }
  // Sets the time limit for waiting for other writers.
  void SetBusyTimeout(int timeout_ms);

  // Returns an error for damage that SQLite did not detect.
  Error Damaged(const std::string& what) const;

 private:
  friend class Statement;
  struct Close {
    void operator()(sqlite3* connection) const;
  };
  struct Patience;
  struct Forget {
    void operator()(Patience* patience) const;
  };
  Error LastError() const;

  // Must outlive the connection, which has a pointer to it.
  std::unique_ptr<Patience, Forget> patience_;
  std::unique_ptr<sqlite3, Close> connection_;
  std::string path_;
};

}  // namespace stasis::jobs
