// The tables of the database of jobs, as the numbered steps that make them.
#pragma once

#include <span>

#include "jobs/sqlite.h"

namespace stasis::jobs {

struct Migration {
  int number;        // 1, 2, …: the version of a database that has gone through it
  const char* what;  // for the error of one that fails
  const char* sql;
};
// One that was released is never changed: what is to be different comes as the next one.
std::span<const Migration> Migrations();

// The file that is opened is a database of Stasis's jobs and not of a later Stasis, and has gone
// through all of `migrations`: those that it lacks are applied in one transaction.
// kDataLoss: it is damaged, or something else. kUnimplemented: it is of a later Stasis.
Status BringUpToDate(Sqlite& database, std::span<const Migration> migrations);
// The same in an empty file, which becomes such a database.
Status MakeTables(Sqlite& database, std::span<const Migration> migrations);

}  // namespace stasis::jobs
