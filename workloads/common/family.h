// A parent without a GPU and children (--children) with one, each a program of its own, asked for
// every round over pipes. With --devices N they take turns in choosing a GPU. Only the parent takes
// SIGTERM; the children end, after their own check, when their pipe closes.
//
// The parent's life is a Family, a child's whatever Workload the program is about.
#pragma once

#include <sys/types.h>

#include <vector>

#include "common/protocol.h"

namespace workloads {

// The child's side, to its end. Its Round() gets what the parent asks.
[[noreturn]] void LiveAsChild(const Options& options, Workload& life);

class Family : public Workload {
 public:
  void SetUp(const Options& options) override;
  uint64_t Round(uint64_t round) override { return Ask(round); }
  void Verify() override;
  // The second child does it, on its own memory.
  void Sabotage() override {}
  void TearDown() override {}

 protected:
  // In a child that was just forked, before its program starts: gives it further descriptors.
  virtual void Equip(int /*child*/) {}
  // Asks all at the same time; the sum of their answers.
  uint64_t Ask(uint64_t word);

 private:
  struct Child {
    pid_t pid = 0;
    int ask = -1;
    int answer = -1;
  };
  void Start(int c, const Options& options);

  std::vector<Child> children_;
};

}  // namespace workloads
