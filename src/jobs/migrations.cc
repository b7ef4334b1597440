#include "jobs/migrations.h"

namespace stasis::jobs {
namespace {

// "Stas" in ASCII. SQLite stores this number in the file header, where file(1) can recognise it.
constexpr int64_t kApplicationId = 0x53746173;

// A NULL column means unknown, or that the event has not happened. Unsigned 64-bit numbers are
// stored as signed numbers with the same bits. argv: the arguments, each followed by a zero byte.
// seen_*: the state when the job was last read, used only if the shim's files and /proc do not
// determine it.
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

// NULL: the image was not copied to a repository.
constexpr char kCopies[] = R"sql(
ALTER TABLE checkpoint ADD COLUMN copy_repository BLOB;
ALTER TABLE checkpoint ADD COLUMN copy_name BLOB;
ALTER TABLE checkpoint ADD COLUMN copy_plain INTEGER;
)sql";

// The class of a job that shares GPUs; NULL: it does not.
constexpr char kShare[] = R"sql(
ALTER TABLE job ADD COLUMN share TEXT;
)sql";

constexpr Migration kMigrations[] = {
    {1, "jobs and their checkpoints", kJobsAndCheckpoints},
    {2, "copies of images in repositories", kCopies},
    {3, "jobs that share GPUs", kShare},
};

Result<int64_t> Version(const Sqlite& database) { return database.Number("PRAGMA user_version"); }

// Call inside a transaction.
Status Apply(Sqlite& database, std::span<const Migration> migrations) {
  STASIS_ASSIGN(int64_t version, Version(database));
  for (const Migration& migration : migrations) {
    if (migration.number <= version) continue;
    STASIS_TRY(Annotate(database.RunScript(migration.sql), "upgrade the database to version " +
                                                               std::to_string(migration.number) +
                                                               " (" + migration.what + ")"));
    version = migration.number;
  }
  return database.Run("PRAGMA user_version = " + std::to_string(version));
}

}  // namespace

std::span<const Migration> Migrations() { return kMigrations; }

Status BringUpToDate(Sqlite& database, std::span<const Migration> migrations) {
  STASIS_ASSIGN(int64_t application, database.Number("PRAGMA application_id"));
  STASIS_ASSIGN(int64_t version, Version(database));
  // A file gets this name only when it is complete, so an empty file was truncated.
  if (application != kApplicationId || version < 1) {
    return Fail(database.Damaged("it is empty, or not a job database"));
  }
  const int known = migrations.back().number;
  if (version > known) {
    return Fail(
        Code::kUnimplemented,
        "a later version of Stasis wrote the job database " + database.path() +
            ": it has version " + std::to_string(version) + ", and this Stasis supports version " +
            std::to_string(known),
        "nothing was changed; use the later Stasis, or another folder with STASIS_STATE_DIR");
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
