#include "containers/reference.h"

#include <gtest/gtest.h>

namespace stasis::containers {
namespace {

TEST(ReferenceTest, EachRuntimeHasItsForm) {
  EXPECT_EQ(*ParseReference("podman:web_1"), (Reference{Runtime::kPodman, "web_1", ""}));
  EXPECT_EQ(*ParseReference("runc:a.b-c"), (Reference{Runtime::kRunc, "a.b-c", ""}));
  EXPECT_EQ(*ParseReference("containerd:x"), (Reference{Runtime::kContainerd, "x", "default"}));
  EXPECT_EQ(*ParseReference("containerd:k8s.io/x"),
            (Reference{Runtime::kContainerd, "x", "k8s.io"}));
}

TEST(ReferenceTest, AnImageOfContainerdMayHaveAColonAndSlashes) {
  EXPECT_EQ(*ParseReference("containerd:default/host/img:1"),
            (Reference{Runtime::kContainerd, "host/img:1", "default"}));
}

TEST(ReferenceTest, TheTextIsTheTargetAgain) {
  for (const char* text : {"podman:web", "runc:r", "containerd:x", "containerd:k8s.io/x"}) {
    EXPECT_EQ(ParseReference(text)->ToString(), text);
  }
}

TEST(ReferenceTest, WhatIsNoContainerIsAUsageError) {
  for (const char* text : {"podman:", "podman:-a", "podman:a b", "podman:../x", "runc:a/b",
                           "containerd:/x", "containerd:a/", "docker:x", "web", "podman:$(x)"}) {
    auto parsed = ParseReference(text);
    ASSERT_FALSE(parsed) << text;
    EXPECT_EQ(parsed.error().domain, Domain::kUsage) << text;
  }
}

TEST(ReferenceTest, JobsAndPathsAreNoReferences) {
  EXPECT_TRUE(IsReference("podman:x"));
  EXPECT_TRUE(IsReference("runc:"));
  for (const char* text : {"podman", "1234", "web", "docker:x", "./podman:x", "podmanx:y"}) {
    EXPECT_FALSE(IsReference(text)) << text;
  }
}

TEST(ReferenceTest, PlacesAreOptionsOfTheCommands) {
  using Words = std::vector<std::string>;
  const Places places{"/r", "/s.sock"};
  EXPECT_EQ(CommandOf({Runtime::kPodman, "x", ""}, places), (Words{"podman"}));
  EXPECT_EQ(CommandOf({Runtime::kRunc, "x", ""}, places), (Words{"runc", "--root", "/r"}));
  EXPECT_EQ(CommandOf({Runtime::kRunc, "x", ""}, {}), (Words{"runc"}));
  EXPECT_EQ(CommandOf({Runtime::kContainerd, "x", "n"}, places),
            (Words{"ctr", "--address", "/s.sock", "--namespace", "n"}));
}

}  // namespace
}  // namespace stasis::containers
