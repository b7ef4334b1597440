#include "base/build_id.h"

#include <elf.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/file.h"
#include "base/hex.h"

namespace stasis {
namespace {

class BuildIdTest : public ::testing::Test {
 protected:
  BuildIdTest() {
    char name[] = "/tmp/stasis-build-id-XXXXXX";
    folder_ = ::mkdtemp(name);
  }
  ~BuildIdTest() override { (void)RemoveTree(folder_); }

  std::string IdOf(const std::string& content) {
    std::string path = folder_ + "/file";
    EXPECT_TRUE(WriteFileDurably(path, content));
    auto id = ReadBuildId(path);
    EXPECT_TRUE(id) << id.error().ToString();
    return id.value_or("(error)");
  }

  std::string folder_;
};

template <class T>
std::string Bytes(const T& value) {
  return {reinterpret_cast<const char*>(&value), sizeof value};
}

// Builds an ELF header, one note segment, and two notes, the first of another type.
std::string Elf() {
  Elf64_Ehdr elf = {};
  memcpy(elf.e_ident, ELFMAG, SELFMAG);
  elf.e_ident[EI_CLASS] = ELFCLASS64;
  elf.e_ident[EI_DATA] = ELFDATA2LSB;
  elf.e_phentsize = sizeof(Elf64_Phdr);
  elf.e_phnum = 1;
  elf.e_phoff = sizeof elf;
  Elf64_Phdr segment = {};
  segment.p_type = PT_NOTE;
  segment.p_offset = sizeof elf + sizeof segment;
  std::string notes =
      Bytes(Elf64_Nhdr{4, 5, 1}) + std::string("GNU\0", 4) + std::string("12345\0\0\0", 8);
  notes += Bytes(Elf64_Nhdr{4, 4, NT_GNU_BUILD_ID}) + std::string("GNU\0\xde\xad\xbe\xef", 8);
  segment.p_filesz = notes.size();
  return Bytes(elf) + Bytes(segment) + notes;
}

TEST_F(BuildIdTest, IsFoundBehindOtherNotes) { EXPECT_EQ(IdOf(Elf()), "deadbeef"); }

TEST_F(BuildIdTest, ARealProgramHasOne) {
  auto id = ReadBuildId("/proc/self/exe");
  ASSERT_TRUE(id);
  EXPECT_EQ(id->size() % 2, 0u);
  EXPECT_EQ(id->find_first_not_of("0123456789abcdef"), id->npos);
}

TEST_F(BuildIdTest, OtherFilesHaveNone) {
  for (const std::string& content :
       {std::string(), std::string("#!/bin/sh\n"), std::string(4096, '\xff')}) {
    EXPECT_EQ(IdOf(content), "");
  }
  EXPECT_FALSE(ReadBuildId(folder_ + "/none"));
}

TEST_F(BuildIdTest, HexConvertsToBytesAndBack) {
  EXPECT_EQ(HexOfBytes(std::string("\x00\xff\x0a", 3)), "00ff0a");
  EXPECT_EQ(BytesOfHex("00ff0a"), std::string("\x00\xff\x0a", 3));
  for (const char* text : {"", "0", "0g", "00f", "-1", "0x"})
    EXPECT_EQ(BytesOfHex(text), "") << text;
}

TEST_F(BuildIdTest, ADamagedFileHasNone) {
  std::string whole = Elf();
  for (size_t length = 0; length < whole.size(); ++length) {
    EXPECT_EQ(IdOf(whole.substr(0, length)), "") << length;
  }
  for (size_t at = 0; at < whole.size(); ++at) {
    for (char byte : {'\x00', '\x7f', '\xff'}) {
      std::string changed = whole;
      changed[at] = byte;
      (void)IdOf(changed);
    }
  }
}

}  // namespace
}  // namespace stasis
