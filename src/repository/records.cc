#include "repository/records.h"

#include <fmt/format.h>

#include "base/little_endian.h"
#include "repository/limits.h"
#include "store/unit_names.h"

namespace stasis::repository {

namespace {

constexpr uint32_t kSealedFlag = 1;
constexpr uint32_t kMaxFunctionBytes = 64;

void AppendPushes(std::string& body, const std::vector<PushId>& pushes) {
  AppendNumber(body, static_cast<uint32_t>(pushes.size()));
  for (const PushId& push : pushes) body += push.View();
}

Result<std::vector<PushId>> ReadPushes(BodyReader& body) {
  STASIS_ASSIGN(const uint32_t count, body.Count(kMaxImagePacks, PushId::kBytes, "pushes"));
  std::vector<PushId> pushes;
  pushes.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    STASIS_ASSIGN(const std::string_view bytes, body.Bytes(PushId::kBytes));
    pushes.push_back(PushId::FromRaw(bytes.data()));
  }
  return pushes;
}

}  // namespace

void AppendPackIds(std::string& body, const std::vector<PackId>& packs) {
  AppendNumber(body, static_cast<uint32_t>(packs.size()));
  for (const PackId& pack : packs) body += pack.ToBytes();
}

Result<std::vector<PackId>> ReadPackIds(BodyReader& body) {
  STASIS_ASSIGN(const uint32_t count, body.Count(kMaxImagePacks, PackId::kBytes, "packs"));
  std::vector<PackId> packs;
  packs.reserve(count);
  for (uint32_t i = 0; i < count; ++i) {
    STASIS_ASSIGN(const std::string_view bytes, body.Bytes(PackId::kBytes));
    packs.push_back(PackId::FromRaw(bytes.data()));
    if (packs.back().number == 0 || packs.back().number > kMaxPushPacks) {
      return BadRecord(fmt::format("it names pack {} of a push, which is not a valid number",
                                   packs.back().number));
    }
  }
  return packs;
}

std::string EncodeInfo(const RepositoryInfo& info) {
  std::string body;
  AppendNumber(body, info.is_sealed ? kSealedFlag : uint32_t{0});
  AppendNumber(body, static_cast<uint32_t>(info.parameters.size()));
  return body + info.parameters;
}

Result<RepositoryInfo> DecodeInfo(const Id128& repository, std::string_view data) {
  BodyReader body(data);
  RepositoryInfo info;
  info.id = repository;
  STASIS_ASSIGN(const auto flags, body.Number<uint32_t>());
  if ((flags & ~kSealedFlag) != 0) {
    return BadRecord(fmt::format("it has unknown flags: {:#x}", flags));
  }
  info.is_sealed = flags != 0;
  STASIS_ASSIGN(const uint32_t bytes, body.Count(kMaxParameterBytes, 1, "bytes of parameters"));
  STASIS_ASSIGN(info.parameters, body.Bytes(bytes));
  STASIS_TRY(body.End());
  return info;
}

std::string EncodePlace(const std::vector<PackTable>& packs) {
  std::string body;
  AppendPackTables(body, packs);
  return body;
}

Result<std::vector<PackTable>> DecodePlace(std::string_view data) {
  BodyReader body(data);
  STASIS_ASSIGN(auto packs, ReadPackTables(body));
  STASIS_TRY(body.End());
  return packs;
}

std::string EncodeNames(const NamesIndex& index) {
  std::string body;
  AppendNumber(body, static_cast<uint32_t>(index.naming.function.size()));
  body += index.naming.function;
  body += index.naming.key_id.View();
  AppendPackTables(body, index.packs);
  for (const Id128& name : index.names) body += name.View();
  return body;
}

Result<NamesIndex> DecodeNames(std::string_view data) {
  BodyReader body(data);
  NamesIndex index;
  STASIS_ASSIGN(const uint32_t function,
                body.Count(kMaxFunctionBytes, 1, "bytes of a hash function's name"));
  STASIS_ASSIGN(index.naming.function, body.Bytes(function));
  STASIS_ASSIGN(const std::string_view key, body.Bytes(Id128::kBytes));
  index.naming.key_id = Id128::FromRaw(key.data());
  STASIS_ASSIGN(index.packs, ReadPackTables(body));
  uint64_t units = 0;
  for (const PackTable& pack : index.packs) units += pack.units();
  STASIS_ASSIGN(const std::string_view names, body.Bytes(units * Id128::kBytes));
  STASIS_TRY(body.End());
  index.names.reserve(units);
  for (uint64_t i = 0; i < units; ++i) {
    index.names.push_back(Id128::FromRaw(names.data() + i * Id128::kBytes));
    if (index.names.back().IsZero()) return BadRecord(fmt::format("unit {} has no name", i));
  }
  return index;
}

std::string EncodePending(const Pending& pending) {
  std::string body;
  AppendNumber(body, pending.written_unix_ns);
  AppendPushes(body, pending.own);
  AppendPackIds(body, pending.packs);
  return body;
}

Result<Pending> DecodePending(std::string_view data) {
  BodyReader body(data);
  Pending pending;
  STASIS_ASSIGN(pending.written_unix_ns, body.Number<int64_t>());
  STASIS_ASSIGN(pending.own, ReadPushes(body));
  STASIS_ASSIGN(pending.packs, ReadPackIds(body));
  STASIS_TRY(body.End());
  return pending;
}

std::string EncodeCondemned(const Condemned& condemned) {
  std::string body;
  AppendNumber(body, condemned.written_unix_ns);
  AppendPackIds(body, condemned.packs);
  AppendPushes(body, condemned.indexes);
  return body;
}

Result<Condemned> DecodeCondemned(std::string_view data) {
  BodyReader body(data);
  Condemned condemned;
  STASIS_ASSIGN(condemned.written_unix_ns, body.Number<int64_t>());
  STASIS_ASSIGN(condemned.packs, ReadPackIds(body));
  STASIS_ASSIGN(condemned.indexes, ReadPushes(body));
  STASIS_TRY(body.End());
  return condemned;
}

}  // namespace stasis::repository
