#include "criu/diagnose.h"

#include <fcntl.h>
#include <sys/mount.h>

#include <regex>

#include "criu/testing.h"

namespace stasis::criu {
namespace {

// Lines as CRIU 4.2.1 writes them, and the resulting errors.
struct Case {
  const char* name;
  const char* log;
  const char* words;
  Code code;
};
constexpr Case kCases[] = {
    {"TakenPid",
     "Error (criu/util.c:1534): rlimit: Can't setup RLIMIT_NOFILE for self: Operation not "
     "permitted\n"
     "Error (criu/cr-restore.c:1237): Can't fork for 25193: File exists\n"
     "Error (criu/cr-restore.c:2331): Restoring FAILED.\n",
     "the process id 25193 is taken", Code::kAlreadyExists},
    {"TakenThreadId",
     "pie: 120: Error (criu/pie/restorer.c:2053): Unable to create a thread: -17\n",
     "the id of one of the program's threads is taken", Code::kAlreadyExists},
    {"TimeAndTask",
     "(00.031337)  25372: Error (criu/sk-inet.c:1059): inet: Can't bind inet socket (id 7): "
     "Address "
     "already in use\n"
     "(00.031400)  25372: Error (criu/files.c:1221): Unable to open fd=4 id=0x7\n"
     "(00.031500) Error (criu/cr-restore.c:1265): 25372 exited, status=1\n",
     "port is not available: Address already in use", Code::kAlreadyExists},
    {"AddressOfAnotherMachine",
     "(00.031337)  25372: Error (criu/sk-inet.c:1059): inet: Can't bind inet socket (id 7): "
     "Cannot assign requested address\n"
     "(00.031400)  25372: Error (criu/files.c:1221): Unable to open fd=4 id=0x7\n",
     "an address that this machine does not have", Code::kUnimplemented},
    {"PortOfRoot",
     "(00.031337)  25372: Error (criu/sk-inet.c:1059): inet: Can't bind inet socket (id 7): "
     "Permission denied\n"
     "(00.031400)  25372: Error (criu/files.c:1221): Unable to open fd=4 id=0x7\n",
     "has no permission for its address or port: Permission denied", Code::kPermissionDenied},
    {"MissingFile",
     " 11: Error (criu/files-reg.c:2353): Can't open file tmp/x.so on restore: No such file or "
     "directory\n",
     "the file /tmp/x.so is missing", Code::kFailedPrecondition},
    {"ChangedFile",
     " 11: Error (criu/files-reg.c:2175): File tmp/log has bad size 30 (expect 20)\n",
     "the file /tmp/log has changed since the dump: it has 30 bytes, but had 20",
     Code::kFailedPrecondition},
    {"ConnectedTcp",
     "Error (criu/sk-inet.c:200): inet: Connected TCP socket, consider using --tcp-established "
     "option.\n",
     "an open TCP connection", Code::kUnimplemented},
    {"NoNftables",
     "(00.010000) Error (criu/netfilter.c:217): Locking network failed using nftables\n"
     "(00.011000) Error (criu/netfilter.c:267): Locking connection failed using nftables\n"
     "(00.011001) Error (criu/sk-tcp.c:81): tcp: Failed to lock TCP connection 1f\n",
     "cannot be blocked with nftables", Code::kUnimplemented},
    {"InotifyInstances",
     "(00.001000) Error (criu/kerndat.c:878): Can't create inotify: Too many open files\n",
     "this user has too many inotify instances", Code::kResourceExhausted},
    {"OpenFiles", "(00.001000) Error (criu/util.c:100): Can't dup: Too many open files\n",
     "a limit on open files was reached", Code::kResourceExhausted},
    {"Unsupported",
     "Error (criu/files-ext.c:97): Can't dump file 9 of that type [600] (anon "
     "anon_inode:[io_uring])\n",
     "(fd 9: anon_inode:[io_uring])", Code::kUnimplemented},
    {"ExternalSocket",
     "Error (criu/sk-unix.c:881): sk unix: Can't dump half of stream unix connection. name: "
     "(null); "
     "peer name: (null)\n",
     "outside of its tree", Code::kUnimplemented},
    {"SessionOutside",
     "Error (criu/cr-dump.c:1528): A session leader of 12(12) is outside of its pid namespace\n",
     "started outside of its pid namespace", Code::kUnimplemented},
    {"NoKfd",
     "Error (amdgpu_plugin.c:1203): amdgpu_plugin: fstat error for /dev/kfd: No such file or "
     "directory\n",
     "CRIU's plugin for AMD GPUs finds no /dev/kfd on this machine", Code::kUnimplemented},
    {"OldKfd",
     "Error (amdgpu_plugin.c:1173): amdgpu_plugin: CR not supported on current kernel "
     "(current:01.06 min:01.08)\n",
     "its interface is version 01.06, and 01.08 is needed", Code::kUnimplemented},
    {"OtherNumberOfGpus",
     "Error (amdgpu_plugin_topology.c:1402): amdgpu_plugin: Number of devices mismatch "
     "(checkpointed:8 local:4)\n",
     "made with 8 AMD GPUs, and this machine has 4", Code::kUnimplemented},
    {"OtherFirmware",
     "Error (amdgpu_plugin_topology.c:1437): amdgpu_plugin: Failed to match remaining nodes\n",
     "their firmware differ from those of the dump", Code::kUnimplemented},
    {"GpuStateNotSaved",
     "Error (amdgpu_plugin.c:1293): amdgpu_plugin: Failed to call dumper (process) ioctl: Invalid "
     "argument\n",
     "amdgpu could not save the GPU state: Failed to call dumper (process) ioctl: Invalid argument",
     Code::kInternal},
    {"MissingPlugin", "Error (criu/image.c:198): Missing required plugin: amdgpu_plugin\n",
     "CRIU has no plugin amdgpu_plugin, which the image needs", Code::kUnimplemented},
    {"FileLocks",
     "Error (criu/file-lock.c:110): Some file locks are hold by dumping tasks! You can try "
     "--file-locks to dump them.\n",
     "holds a file lock", Code::kUnimplemented},
    {"DiskFull",
     "Error (criu/protobuf.c:157): Can't write 60 bytes: No space left on device\n"
     "Error (criu/cr-dump.c:1849): Dumping FAILED.\n",
     "the disk is full", Code::kResourceExhausted},
    {"PageWriteFull",
     "Error (criu/page-xfer.c:263): page-xfer: Unable to spice data: No space left "
     "on device\n",
     "the disk is full", Code::kResourceExhausted},
    {"Vdso", "Error (criu/vdso.c:276): vdso: Unexpected rt vDSO area bounds\n",
     "does not support this kernel", Code::kUnimplemented},
    {"Traced",
     "Error (compel/src/lib/infect.c:262): Unseizable non-zombie 77 found, state S, err "
     "-1/4711\n",
     "process 77 cannot be stopped", Code::kPermissionDenied},
    {"Unknown", "Error (criu/x.c:1): Something new\nError (criu/y.c:2): And more\n",
     "could not dump: Something new", Code::kInternal},
    {"Nothing", "Warn  (criu/x.c:1): hm\n", "its log contains no error", Code::kInternal},
    {"Garbage", "Error (\nError (a): \n\n)Error(\xff\xfe", "could not dump", Code::kInternal},
};

class DiagnoseOf : public ::testing::TestWithParam<Case> {};

TEST_P(DiagnoseOf, IsOneSentence) {
  const Case& c = GetParam();
  Error error = Diagnose(c.log, "CRIU could not dump", 5);
  EXPECT_NE(error.message.find(c.words), std::string::npos) << error.message;
  EXPECT_EQ(error.message.find('\n'), std::string::npos);
  EXPECT_EQ(error.message.find('$'), std::string::npos) << error.message;
  EXPECT_EQ(error.code, c.code);
  EXPECT_EQ(error.domain, Domain::kCriu);
  EXPECT_EQ(error.raw, 5);
}

INSTANTIATE_TEST_SUITE_P(All, DiagnoseOf, ::testing::ValuesIn(kCases),
                         [](const auto& info) { return std::string(info.param.name); });

TEST(Diagnose, TruncatesLongTexts) {
  Error error = Diagnose("Error (x): " + std::string(3000, 'y') + "\n", "no", 0);
  EXPECT_LT(error.message.size(), 400u);
}

TEST(CopyLogBounded, KeepsHeadAndTail) {
  char folder[] = "/tmp/stasis-criu-test.XXXXXX";
  ASSERT_NE(::mkdtemp(folder), nullptr);
  std::string from = std::string(folder) + "/from", to = std::string(folder) + "/to";
  for (size_t size : {size_t{0}, size_t{1000}, size_t{5} << 20}) {
    std::string text(size, 'x');
    if (size > 0) text.front() = 'a', text.back() = 'z';
    ASSERT_TRUE(WriteFileDurably(from, text));
    ASSERT_TRUE(CopyLogBounded(from, to));
    std::string copy = ReadFile(to).value();
    EXPECT_LE(copy.size(), (1u << 20) + 100);
    if (size <= 1u << 20) {
      EXPECT_EQ(copy, text);
    } else {
      EXPECT_EQ(copy.front(), 'a');
      EXPECT_EQ(copy.back(), 'z');
      EXPECT_NE(copy.find("bytes omitted"), std::string::npos);
    }
  }
  EXPECT_TRUE(RemoveTree(folder));
}

// The following tests run the real CRIU.
using namespace testing;  // NOLINT(google-build-using-namespace)

class RealCriu : public WithCriu {};

TEST_F(RealCriu, APidInUse) {
  Target target({"memory"});
  ASSERT_TRUE(IsOk(MustSpawn().Dump(target.Dump(), nullptr, Soon())));
  // The zombie of the dumped process still occupies the pid; it must be reaped before a restore.
  auto restored = MustSpawn().Restore(target.Restore(), nullptr, Soon());
  ASSERT_FALSE(restored);
  EXPECT_EQ(restored.error().code, Code::kAlreadyExists) << target.Log();
  EXPECT_EQ(restored.error().message, "CRIU could not restore the tree: the process id " +
                                          process::ToString(target.pid()) + " is taken");
  EXPECT_NE(restored.error().hint.find("zombie"), std::string::npos);
}

struct Refused {
  const char* what;
  const char* words;
};
constexpr Refused kRefused[] = {
    {"tcp-connect", "an open TCP connection"},
    {"file-lock", "holds a file lock"},
    {"io-uring", "io_uring"},
    {"renamed", "--link-remap"},
    {"deleted-big", "more than the limit"},
    {"tcp-waiting", "has not accepted a TCP connection yet"},
    {"device", "a file that CRIU cannot save"},
};

// Bypasses the preflight: CRIU itself rejects the dump, and the program continues to run.
class RefusedByCriu : public WithCriu, public ::testing::WithParamInterface<Refused> {};

TEST_P(RefusedByCriu, IsReportedReadably) {
  Target target({GetParam().what});
  auto dumped = MustSpawn().Dump(target.Dump(), nullptr, Soon());
  ASSERT_FALSE(dumped);
  std::string all = dumped.error().message + " " + dumped.error().hint;
  EXPECT_NE(all.find(GetParam().words), std::string::npos) << all << "\n" << target.Log();
  EXPECT_TRUE(target.Counts()) << target.State();
}

INSTANTIATE_TEST_SUITE_P(All, RefusedByCriu, ::testing::ValuesIn(kRefused), [](const auto& info) {
  return std::regex_replace(std::string(info.param.what), std::regex("-"), "");
});

TEST_F(RealCriu, AFileMissingAtTheRestore) {
  Target target({"memory"});
  ASSERT_TRUE(IsOk(MustSpawn().Dump(target.Dump(), nullptr, Soon())));
  target.Reap();
  std::string state = target.state_path();
  ASSERT_EQ(::rename(state.c_str(), (state + ".away").c_str()), 0);
  auto restored = MustSpawn().Restore(target.Restore(), nullptr, Soon());
  ASSERT_FALSE(restored);
  EXPECT_NE(restored.error().message.find("the file " + state + " is missing"), std::string::npos)
      << restored.error().message << "\n"
      << target.Log();
  target.Reap();  // CRIU may leave partly created processes, which become children of this one
  ASSERT_EQ(::rename((state + ".away").c_str(), state.c_str()), 0);
  ASSERT_TRUE(IsOk(MustSpawn().Restore(target.Restore(), nullptr, Soon())));
  EXPECT_TRUE(target.Counts());
}

TEST_F(RealCriu, AFullDisk) {
  Target target({"big"});
  std::string small = target.directory() + "/small";
  ASSERT_TRUE(MakeDirs(small));
  ASSERT_EQ(::mount("none", small.c_str(), "tmpfs", 0, "size=1m"), 0);
  DumpRequest request = target.Dump();
  request.images_dir = small;
  auto dumped = MustSpawn().Dump(request, nullptr, Soon());
  ASSERT_EQ(::umount(small.c_str()), 0);
  ASSERT_FALSE(dumped);
  EXPECT_EQ(dumped.error().code, Code::kResourceExhausted) << target.Log();
  EXPECT_TRUE(target.Counts()) << target.State();
}

}  // namespace
}  // namespace stasis::criu
