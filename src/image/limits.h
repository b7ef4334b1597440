// Bounds on what an image may claim, checked before anything is allocated for it. Part of the
// format (docs/format/image.md): a writer refuses to pass them, a reader refuses what does.
#pragma once

#include <cstddef>
#include <cstdint>

namespace stasis::image {

inline constexpr uint32_t kFormatVersion = 3;
inline constexpr uint32_t kOldestFormatVersion = 1;

inline constexpr uint64_t kMaxManifestBytes = 64ull << 20;  // of the protobuf body
inline constexpr size_t kMaxPathBytes = 1024;
inline constexpr size_t kMaxNameBytes = 255;
inline constexpr uint64_t kMaxFileBytes = 1ull << 50;
inline constexpr uint32_t kChunkBytes = 16u << 20;  // what we write
inline constexpr uint32_t kMinChunkBytes = 4u << 10;
inline constexpr uint32_t kMaxChunkBytes = 1u << 30;
inline constexpr uint64_t kMaxLogBytes = 1ull << 20;

inline constexpr uint32_t kBlockBytes = 2u << 20;
inline constexpr uint64_t kPackAlign = 4096;
inline constexpr uint64_t kMaxPackBlocks = 1ull << 22;
inline constexpr uint32_t kPageBytes = 4096;              // of a program's memory, as CRIU saves it
inline constexpr uint64_t kMaxPackPages = 1ull << 24;     // 64 GiB
inline constexpr uint64_t kMaxImagePages = 1ull << 25;    // that are in packs, each use counted
inline constexpr uint32_t kMaxExtentBytes = kBlockBytes;  // of a compressed one, decompressed
inline constexpr size_t kMaxPacks = 16384;                // of one image
inline constexpr size_t kMaxLinkedPacks = 128;  // of them, written by earlier images; what we write

inline constexpr char kManifestName[] = "manifest.pb";
// The folders of an image; a file of an image lies directly in one of them.
inline constexpr const char* kFolders[] = {"cpu", "gpu", "log", "agent", "pages"};
// There only when something lies in them: readers from before them know no such folders.
inline constexpr char kAgentFolder[] = "agent";
inline constexpr char kPagesFolder[] = "pages";

// Bits of the envelope's features: what a reader must know.
inline constexpr uint64_t kFeatureAgent = 1;   // files in agent/
inline constexpr uint64_t kFeatureOrigin = 2;  // an origin MAC behind the body (envelope.h)
inline constexpr uint64_t kKnownFeatures = kFeatureAgent | kFeatureOrigin;

}  // namespace stasis::image
