#include "api/migration_notes.h"

#include <gtest/gtest.h>

#include <vector>

namespace stasis::api {
namespace {

TEST(MigrationNotesTest, NotesOfTheOtherHostAreBoundedAndPrintable) {
  v1::OperationResult result;
  AddNotesOf("b", std::vector<std::string>{"plain", "\x1b[31mred\n\xff"}, result);
  ASSERT_EQ(result.notes_size(), 2);
  EXPECT_EQ(result.notes(0), "on b: plain");
  EXPECT_EQ(result.notes(1), "on b: ?[31mred??");

  result.clear_notes();
  AddNotesOf("b", std::vector<std::string>(1000, std::string(100'000, 'x')), result);
  EXPECT_EQ(result.notes_size(), static_cast<int>(kMostNotes));
  for (const std::string& note : result.notes()) EXPECT_LT(note.size(), kMostNoteBytes + 20);
}

}  // namespace
}  // namespace stasis::api
