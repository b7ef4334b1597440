#include "jobs/migrations.h"

namespace stasis::jobs {
namespace {

// "Stas": SQLite keeps it in the file's header, where `file` sees it too.
constexpr int64_t kApplicationId = 0x53746173;

// Columns that are NULL: nothing is known of it, or it has not happened. Numbers of 64 bits without
// a sign are kept bit by bit. argv: the arguments, a zero byte behind each.
// seen_*: what was found when somebody last looked. It counts only where the shim's files and /proc
// say nothing.
constexpr char kJobsAndCheckpoints[] = R"sql(
CREATE TABLE job (
  id              TEXT PRIMARY KEY,
  argv            BLOB NOT NULL,
  cwd             BLOB NOT NULL,
  log             BLOB NOT NULL,
  agent           BLOB NOT NULL,
  uid             INTEGER NOT NULL,
  gid             INTEGER NOT NULL,
  created_ms      INTEGER NOT NULL,
  changed_ms      INTEGER NOT NULL,
  seen_state      TEXT NOT NULL,
  seen_boot_id    TEXT,
  seen_shim_pid   INTEGER,
  seen_shim_start INTEGER,
  seen_root_pid   INTEGER,
  seen_root_start INTEGER,
  seen_log_device INTEGER,
  seen_log_inode  INTEGER,
  seen_code       INTEGER,
  seen_signal     INTEGER,
  seen_ended_ms   INTEGER,
  seen_image      BLOB
) STRICT;
CREATE TABLE checkpoint (
  number          INTEGER PRIMARY KEY AUTOINCREMENT,
  job             TEXT NOT NULL REFERENCES job(id) ON DELETE CASCADE,
  kind            TEXT NOT NULL,
  image           BLOB NOT NULL,
  name            BLOB NOT NULL,
  time_ms         INTEGER NOT NULL,
  bytes           INTEGER NOT NULL,
  written_bytes   INTEGER,
  seconds         REAL NOT NULL,
  account         TEXT
) STRICT;
CREATE INDEX checkpoint_by_job ON checkpoint(job, kind, number);
)sql";

constexpr Migration kMigrations[] = {
    {1, "jobs and their checkpoints", kJobsAndCheckpoints},
};

Result<int64_t> Version(const Sqlite& database) { return database.Number("PRAGMA user_version"); }

// Inside of a transaction.
Status Apply(Sqlite& database, std::span<const Migration> migrations) {
  STASIS_ASSIGN(int64_t version, Version(database));
  for (const Migration& migration : migrations) {
    if (migration.number <= version) continue;
    STASIS_TRY(Annotate(
        database.RunScript(migration.sql),
        "bring it to version " + std::to_string(migration.number) + " (" + migration.what + ")"));
    version = migration.number;
  }
  return database.Run("PRAGMA user_version = " + std::to_string(version));
}

}  // namespace

std::span<const Migration> Migrations() { return kMigrations; }

Status BringUpToDate(Sqlite& database, std::span<const Migration> migrations) {
  STASIS_ASSIGN(int64_t application, database.Number("PRAGMA application_id"));
  STASIS_ASSIGN(int64_t version, Version(database));
  // It gets its name when it is complete, so an empty one was emptied.
  if (application != kApplicationId || version < 1) {
    return Fail(database.Damaged("it is empty, or not a database of jobs"));
  }
  const int known = migrations.back().number;
  if (version > known) {
    return Fail(
        Code::kUnimplemented,
        "the database of jobs " + database.path() + " is of a later Stasis: it has version " +
            std::to_string(version) + ", and this one knows " + std::to_string(known),
        "use the later Stasis, or another folder with STASIS_STATE_DIR. Nothing was changed");
  }
  if (version == known) return {};
  return database.Write([&] { return Apply(database, migrations); });
}

Status MakeTables(Sqlite& database, std::span<const Migration> migrations) {
  return database.Write([&]() -> Status {
    STASIS_TRY(database.Run("PRAGMA application_id = " + std::to_string(kApplicationId)));
    return Apply(database, migrations);
  });
}

}  // namespace stasis::jobs
