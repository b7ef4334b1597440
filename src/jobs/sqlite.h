// SQLite in the words of this house: Result<T>, values by type, errors that name the file.
// A connection belongs to one thread and one piece of work; none is carried through a fork.
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

// Bytes that need not be text: arguments, paths.
struct Blob {
  std::string bytes;
};
using SqlValue = std::variant<std::monostate, int64_t, double, std::string, Blob>;

// A statement and the row that it stands on. Columns are counted from 0; a column of another type
// than is asked for reads as 0 or empty.
class Statement {
 public:
  // Whether there is a next row, which it then stands on.
  Result<bool> Next();
  bool IsNull(int column) const;
  int64_t Int(int column) const;
  double Real(int column) const;
  std::string Bytes(int column) const;  // of text and of blobs

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
  // How long a command waits for another one that writes. Writers take milliseconds, and a killed
  // one holds nothing: only a stopped one is met that long.
  static constexpr int kBusyTimeoutMs = 10000;

  // An existing file, or with `create` a new one. Nothing is read yet: a file that is no database
  // shows at the first statement. How a commit reaches the disk is set here:
  // docs/decisions/2026-11-22-jobs-in-sqlite.md.
  static Result<Sqlite> Open(const std::string& path, bool create = false);

  const std::string& path() const { return path_; }

  Status Run(const std::string& sql, const std::vector<SqlValue>& values = {});
  Result<Statement> Query(const std::string& sql, const std::vector<SqlValue>& values = {}) const;
  // Several statements, without values.
  Status RunScript(const std::string& sql);
  // The first column of the first row.
  Result<int64_t> Number(const std::string& sql) const;
  // Rows that the last Run changed.
  int64_t changed() const;
  int64_t last_row() const;

  // Runs `body` in a transaction that has the right to write from its begin, so that two of them
  // wait for each other and never stand in each other's way. A failure of `body` undoes all of it.
  template <class Body>
  Status Write(Body body) {
    STASIS_TRY(Run("BEGIN IMMEDIATE"));
    Status status = body();
    if (status) status = Run("COMMIT");
    if (!status) (void)Run("ROLLBACK");  // SQLite may have done it already
    return status;
  }
  // Waits for other writers only that long from now on.
  void SetBusyTimeout(int timeout_ms);

  // An error of this file that SQLite did not see.
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

  std::unique_ptr<Patience, Forget> patience_;  // outlives the connection, which has its address
  std::unique_ptr<sqlite3, Close> connection_;
  std::string path_;
};

}  // namespace stasis::jobs
