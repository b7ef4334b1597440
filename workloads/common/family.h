// A parent without a GPU and children that use one. Each child is a forked process that has called
// exec; --children sets their number. The parent sends requests for every round through pipes. With
// --devices N the children use the GPUs in turn. Only the parent handles SIGTERM; a child verifies
// its data and exits when its pipe closes.
//
// The parent uses Family; a child uses the Workload of the program.
#pragma once

#include <sys/types.h>

#include <vector>

#include "common/protocol.h"

namespace workloads {

// Runs the child's side until its end. Round() gets the parent's requests.
[[noreturn]] void LiveAsChild(const Options& options, Workload& life);

class Family : public Workload {
 public:
  void SetUp(const Options& options) override;
  uint64_t Round(uint64_t round) override { return Ask(round); }
  void Verify() override;
  // Empty, because Start() makes the second child sabotage its own memory.
  void Sabotage() override {}
  void TearDown() override {}

 protected:
  // Called in a forked child before exec. An override may set up more descriptors for the child.
  virtual void Equip(int /*child*/) {}
  // Asks all children concurrently; returns the sum of their answers.
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
