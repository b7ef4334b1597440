// The conformance tests of the stores that need no server.
#include "objects/testing/conformance.h"

#include <stdlib.h>

#include "base/file.h"
#include "objects/folder_store.h"
#include "objects/testing/memory_store.h"

namespace stasis::objects::testing {
namespace {

StoreUnderTest OpenMemory() { return {nullptr, std::make_shared<MemoryStore>()}; }

StoreUnderTest OpenTemporaryFolder() {
  std::string path = ::testing::TempDir() + "objects-XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) return {};
  std::shared_ptr<void> remove(nullptr, [path](void*) { (void)RemoveTree(path); });
  auto store = FolderStore::Open(path);
  if (!store) return {};
  return {remove, std::move(*store)};
}

INSTANTIATE_TEST_SUITE_P(Local, ObjectStoreTest,
                         ::testing::Values(StoreKind{"memory", OpenMemory},
                                           StoreKind{"folder", OpenTemporaryFolder}),
                         [](const auto& info) { return info.param.name; });

}  // namespace
}  // namespace stasis::objects::testing
