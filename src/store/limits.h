// Bounds on what an image may claim. A reader checks them before it allocates anything, and a
// writer refuses to exceed them. They are part of the format (docs/format/image.md).
#pragma once

#include <cstddef>
#include <cstdint>

#include "base/block_hash.h"

namespace stasis::store {

inline constexpr uint32_t kFormatVersion = 1;

inline constexpr uint64_t kMaxManifestBytes = 64ull << 20;  // of the protobuf body
inline constexpr size_t kMaxPathBytes = 1024;
inline constexpr size_t kMaxNameBytes = 255;
inline constexpr uint64_t kMaxFileBytes = 1ull << 50;
inline constexpr uint32_t kChunkBytes = 16u << 20;  // of new images
inline constexpr uint32_t kMinChunkBytes = 4u << 10;
inline constexpr uint32_t kMaxChunkBytes = 1u << 30;
inline constexpr uint64_t kMaxLogBytes = 1ull << 20;

// A unit is a block of GPU memory (kBlockBytes) or a page of CPU memory.
inline constexpr uint32_t kPageBytes = 4096;
inline constexpr uint64_t kPackAlign = 4096;
inline constexpr uint64_t kMaxPackUnits = 1ull << 24;     // 64 GiB of pages
inline constexpr uint64_t kMaxImageUnits = 1ull << 25;    // references to units in packs
inline constexpr uint32_t kMaxExtentBytes = kBlockBytes;  // of one PackWriter::Append
inline constexpr size_t kMaxPacks = 16384;                // of one image
inline constexpr size_t kMaxLinkedPacks = 128;  // packs of earlier images that a new one links

inline constexpr char kManifestName[] = "manifest.pb";
// The folders of an image; a file of an image lies directly in one of them.
inline constexpr const char* kFolders[] = {"cpu", "log", "packs", "agent"};
inline constexpr char kPacksFolder[] = "packs";
inline constexpr char kAgentFolder[] = "agent";  // exists only if it contains files

// Bits of the envelope's features. A reader must reject an image with a bit that it does not know.
inline constexpr uint64_t kFeatureAgent = 1;      // files in agent/
inline constexpr uint64_t kFeatureOrigin = 2;     // an origin MAC after the body (envelope.h)
inline constexpr uint64_t kFeatureElsewhere = 4;  // Manifest::ranges_elsewhere
inline constexpr uint64_t kKnownFeatures = kFeatureAgent | kFeatureOrigin | kFeatureElsewhere;

inline constexpr char kOtherCopyHint[] = "Use another copy of the image, or an older checkpoint.";

}  // namespace stasis::store
