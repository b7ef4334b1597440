// The tables of the job database, as numbered migrations.
#pragma once

#include <span>

#include "jobs/sqlite.h"

namespace stasis::jobs {

struct Migration {
  int number;        // 1, 2, …: the version of the database after this migration
  const char* what;  // for error messages
  const char* sql;
};
// A released migration never changes; new changes are appended.
std::span<const Migration> Migrations();

// Checks that the file is a job database of this or an earlier version, and applies missing
// `migrations` in one transaction. Returns kDataLoss if the file is damaged or not such a database,
// kUnimplemented if a later version of Stasis wrote it.
Status BringUpToDate(Sqlite& database, std::span<const Migration> migrations);
// Creates the tables in an empty file.
Status MakeTables(Sqlite& database, std::span<const Migration> migrations);

}  // namespace stasis::jobs
