// A parent without a GPU, and children that each have their own GPU memory (common/family.h).
#include "common/family.h"
#include "common/steady.h"

int main(int argc, char** argv) {
  const workloads::Options options = workloads::Begin(argc, argv);
  if (options.child > 0) {
    workloads::Steady steady(1000 + static_cast<uint64_t>(options.child));
    workloads::LiveAsChild(options, steady);
  }
  workloads::Family tree;
  workloads::Run(tree, options);
}
