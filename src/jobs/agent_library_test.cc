#include "jobs/agent_library.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <sys/stat.h>

#include "base/build_id.h"
#include "jobs/test_jobs.h"

namespace stasis::jobs {
namespace {

using ::testing::HasSubstr;

mode_t ModeOf(const std::string& path) {
  struct stat st {};
  return ::stat(path.c_str(), &st) == 0 ? st.st_mode & 07777 : 0;
}

class AgentLibraryTest : public ::testing::Test {
 protected:
  AgentLibraryTest() : paths{folder.path() + "/run", folder.path() + "/data"} {
    ::mkdir(paths.data.c_str(), 0700);
    old_umask_ = ::umask(077);
  }
  ~AgentLibraryTest() override { ::umask(old_umask_); }

  TempFolder folder;
  Paths paths;

 private:
  mode_t old_umask_;
};

TEST_F(AgentLibraryTest, TheCopyIsReadableByEveryUserAndIsNotReplaced) {
  auto path = InstallAgentLibrary(paths);
  ASSERT_TRUE(path) << path.error().ToString();
  auto own = OwnAgentLibrary();
  ASSERT_TRUE(own);
  EXPECT_EQ(*path, paths.data + "/agents/" + own->build_id + "/libstasis-agent.so");
  EXPECT_EQ(*ReadFile(*path), *ReadFile(own->path));
  EXPECT_EQ(ModeOf(*path), 0555u);
  EXPECT_EQ(ModeOf(paths.data + "/agents/" + own->build_id), 0755u);
  EXPECT_EQ(ModeOf(paths.data + "/agents"), 0755u);
  EXPECT_EQ(ModeOf(paths.data), 0711u);

  struct stat before {
  }, after{};
  ASSERT_EQ(::stat(path->c_str(), &before), 0);
  ASSERT_TRUE(InstallAgentLibrary(paths));
  ASSERT_EQ(::stat(path->c_str(), &after), 0);
  EXPECT_EQ(before.st_ino, after.st_ino);
  EXPECT_EQ(ListDir(paths.data + "/agents/" + own->build_id)->size(), 1u);
}

TEST_F(AgentLibraryTest, NothingIsWrittenIfTheCopyExists) {
  auto path = InstallAgentLibrary(paths);
  ASSERT_TRUE(path) << path.error().ToString();
  const std::string library_folder = path->substr(0, path->rfind('/'));
  const timespec long_ago[2] = {{1, 0}, {1, 0}};
  ASSERT_EQ(::utimensat(AT_FDCWD, library_folder.c_str(), long_ago, 0), 0);
  ASSERT_TRUE(InstallAgentLibrary(paths));
  struct stat st {};
  ASSERT_EQ(::stat(library_folder.c_str(), &st), 0);
  EXPECT_EQ(st.st_mtim.tv_sec, 1) << "a temporary file was created in it";
}

TEST_F(AgentLibraryTest, AnotherFileAtThePathIsRejectedAndNotChanged) {
  auto path = InstallAgentLibrary(paths);
  ASSERT_TRUE(path);
  ASSERT_EQ(::unlink(path->c_str()), 0);
  ASSERT_TRUE(WriteFileDurably(*path, "something else"));
  auto again = InstallAgentLibrary(paths);
  ASSERT_FALSE(again);
  EXPECT_THAT(again.error().message, HasSubstr(*path));
  EXPECT_EQ(*ReadFile(*path), "something else");
}

TEST_F(AgentLibraryTest, APathThatTheLoaderWouldSplitIsRejected) {
  for (const char* name : {"with space", "with:colon", "with$ORIGIN"}) {
    Paths odd{folder.path() + "/run", folder.path() + "/" + name};
    ::mkdir(odd.data.c_str(), 0700);
    auto path = InstallAgentLibrary(odd);
    ASSERT_FALSE(path) << name;
    EXPECT_EQ(ExitCode(path.error()), 5);
    EXPECT_THAT(path.error().hint, HasSubstr("STASIS_STATE_DIR"));
  }
}

TEST_F(AgentLibraryTest, AMissingLibraryIsRestoredAtItsPath) {
  auto own = OwnAgentLibrary();
  ASSERT_TRUE(own);
  std::string place = folder.path() + "/elsewhere/agents/" + own->build_id + "/libstasis-agent.so";
  auto back = RestoreAgentLibrary(place, own->build_id, own->path);
  ASSERT_TRUE(back) << back.error().ToString();
  EXPECT_EQ(*ReadFile(place), *ReadFile(own->path));
  EXPECT_EQ(ModeOf(place), 0555u);
  EXPECT_TRUE(RestoreAgentLibrary(place, own->build_id, "/not/needed"));
}

TEST_F(AgentLibraryTest, OtherPathsAndOtherLibrariesAreRejected) {
  auto own = OwnAgentLibrary();
  ASSERT_TRUE(own);
  std::string id = own->build_id, name = "/libstasis-agent.so";
  for (const std::string& place :
       {"/usr/lib" + name, folder.path() + "/agents/" + id + "/libc.so.6",
        folder.path() + "/x/../agents/" + id + name, "agents/" + id + name,
        folder.path() + "/agents/" + std::string(id.size(), 'a') + name, std::string()}) {
    EXPECT_FALSE(IsInstalledPlace(place, id)) << place;
    EXPECT_FALSE(RestoreAgentLibrary(place, id, own->path)) << place;
  }
  std::string other(id.size(), 'a'), place = folder.path() + "/agents/" + other + name;
  auto wrong = RestoreAgentLibrary(place, other, own->path);
  ASSERT_FALSE(wrong);
  EXPECT_THAT(wrong.error().message, HasSubstr(id));
  EXPECT_FALSE(PathExists(place));
}

TEST(PreloadValueTest, TheAgentComesFirstAndOnlyOnce) {
  EXPECT_EQ(PreloadValue("", ""), "");
  EXPECT_EQ(PreloadValue("", "/a/libstasis-agent.so"), "/a/libstasis-agent.so");
  EXPECT_EQ(PreloadValue("x.so /y.so", "/a/libstasis-agent.so"),
            "/a/libstasis-agent.so:x.so:/y.so");
  EXPECT_EQ(PreloadValue("::/old/libstasis-agent.so:y.so ", "/a/libstasis-agent.so"),
            "/a/libstasis-agent.so:y.so");
  EXPECT_EQ(PreloadValue("/old/libstasis-agent.so", ""), "");
}

}  // namespace
}  // namespace stasis::jobs
