// The tables of the database of jobs, as numbered migrations.
#pragma once

#include <span>

#include "jobs/sqlite.h"

namespace stasis::jobs {

struct Migration {
  int number;        // 1, 2, …: the version of the database after it
  const char* what;  // for error messages
  const char* sql;
};
// A released migration never changes; new changes are appended.
std::span<const Migration> Migrations();

// Checks that the file is a database of jobs of this or an earlier version, and applies missing
// `migrations` in one transaction. Returns kDataLoss if it is damaged or of another kind,
// kUnimplemented if it is of a later version of Stasis.
Status BringUpToDate(Sqlite& database, std::span<const Migration> migrations);
// Creates the tables in an empty file.
Status MakeTables(Sqlite& database, std::span<const Migration> migrations);

}  // namespace stasis::jobs
