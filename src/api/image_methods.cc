// The methods for images.
#include <algorithm>

#include "api/error_message.h"
#include "api/local_images.h"
#include "api/methods.h"
#include "api/remote_images.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/file.h"
#include "repository/registry.h"
#include "repository/sent_images.h"
#include "store/gc.h"
#include "store/image_folder.h"
#include "store/image_reader.h"
#include "store/image_report.h"
#include "store/limits.h"
#include "store/origin.h"
#include "store/store_folder.h"

namespace stasis::api {
namespace {

using store::ImageReader;
using store::Manifest;

// Describes the image at `path`. Returns false if it was deleted meanwhile.
bool Summarize(const std::string& path, v1::ListImagesResponse::Image& message) {
  auto reader = ImageReader::Open(path);
  message.set_ok(reader.has_value());
  if (!reader) {
    message.set_error(Utf8(reader.error().ToString()));
    return reader.error().code != Code::kNotFound;
  }
  const Manifest& manifest = (*reader)->manifest();
  message.set_id(manifest.image_id.Hex());
  message.set_created(store::Utc(manifest.created_unix_ns));
  message.set_job(Utf8(manifest.job.id));
  for (const std::string& argument : manifest.job.argv) message.add_command(Utf8(argument));
  message.set_size_bytes(manifest.TotalBytes());
  message.set_added_bytes(manifest.AddedBytes());
  message.set_device_bytes(store::DeviceBytes(manifest));
  return true;
}

// Removes the notes about images of killed migrations in repositories that the user has removed.
void ForgetSentImages(const Call& call, v1::CollectGarbageResponse& response) {
  auto forget = [&]() -> Result<std::vector<std::string>> {
    STASIS_ASSIGN(const auto registrations, repository::ListRegistrations(call.paths));
    std::vector<Id128> known;
    for (const auto& registration : registrations) known.push_back(registration.id);
    return repository::ForgetSentImages(call.paths.images(), known);
  };
  const auto forgotten = forget();
  if (!forgotten) {
    auto& message = *response.add_left_alone();
    message.set_path(Utf8(call.paths.images()));
    message.set_why(Utf8("notes about images in removed repositories could not be removed: " +
                         forgotten.error().ToString()));
    return;
  }
  for (const std::string& name : *forgotten) response.add_removed(Utf8(name));
}

}  // namespace

Result<v1::ListImagesResponse> ListImages(Call& call, const v1::ListImagesRequest& request) {
  if (request.has_repository()) return ListImagesOfRepository(call, request);
  STASIS_ASSIGN(const std::string store, StoreOf(call, request.store()));
  STASIS_ASSIGN(auto names, store::ListImages(store));
  v1::ListImagesResponse response;
  response.set_store(Utf8(store));
  for (const std::string& name : names) {
    auto& message = *response.add_images();
    message.set_name(Utf8(name));
    message.set_path(Utf8(store + "/" + name));
    // The list also contains folders that have a manifest but not the name of an image.
    const Status valid = store::CheckImageName(name);
    message.set_ok(valid.has_value());
    if (!valid) {
      message.set_error(Utf8(valid.error().ToString()));
    } else if (!request.brief() && !Summarize(store + "/" + name, message)) {
      response.mutable_images()->RemoveLast();
    }
  }
  return response;
}

Result<v1::InspectImageResponse> InspectImage(Call& call, const v1::InspectImageRequest& request) {
  if (request.has_repository()) return InspectImageOfRepository(call, request);
  STASIS_ASSIGN(const std::string path, ImagePath(call, request.store(), request.image()));
  STASIS_ASSIGN(auto reader, ImageReader::Open(path));
  const v1::Origin origin = OriginOf(call, *reader);
  nlohmann::json document = store::InspectJson(*reader);
  document["origin"] = {
      {"by", origin.by()}, {"key", origin.key()}, {"repository", origin.repository()}};
  v1::InspectImageResponse response;
  response.set_document(document.dump());
  return response;
}

Result<v1::VerifyImageResponse> VerifyImage(Call& call, const v1::VerifyImageRequest& request) {
  if (request.has_repository()) return VerifyImageOfRepository(call, request);
  STASIS_ASSIGN(const std::string path, ImagePath(call, request.store(), request.image()));
  STASIS_ASSIGN(auto reader, ImageReader::Open(path));
  STASIS_ASSIGN(auto report,
                reader->Verify(store::VerifyLevel::kFull, BytesProgressOf(call, "verify")));
  const v1::Origin origin = OriginOf(call, *reader);
  if (origin.by() == store::OriginName(store::Origin::kChanged)) {
    report.findings.push_back({store::kManifestName, "was changed after it was written here"});
  }
  v1::VerifyImageResponse response;
  response.set_path(Utf8(reader->path()));
  response.set_id(reader->manifest().image_id.Hex());
  *response.mutable_origin() = origin;
  response.set_ok(report.ok());
  for (const store::Finding& finding : report.findings) {
    auto& message = *response.add_findings();
    message.set_path(Utf8(finding.path));
    message.set_message(Utf8(finding.message));
  }
  response.set_files(report.files);
  response.set_bytes(report.bytes);
  response.set_seconds(report.seconds);
  if (Status whole = report.ToStatus(path); !whole) {
    *response.mutable_error() = EncodeError(whole.error());
  }
  return response;
}

Result<v1::DeleteImagesResponse> DeleteImages(Call& call, const v1::DeleteImagesRequest& request) {
  if (request.has_repository()) return DeleteImagesOfRepository(call, request);
  STASIS_ASSIGN(const std::string store, StoreOf(call, request.store()));
  std::vector<std::string> paths;  // find all images before deleting any
  for (const std::string& name : request.images()) {
    STASIS_ASSIGN(std::string path, ImagePath(call, request.store(), name));
    paths.push_back(std::move(path));
  }
  // Also removes leftovers of interrupted deletes, dumps and migrations, which the request may
  // name, too.
  STASIS_TRY(store::SweepPartials(store));
  v1::DeleteImagesResponse response;
  for (const std::string& path : paths) {
    auto status = PathExists(path) ? store::DeleteImage(path) : Status();
    if (!status) {
      Error error = std::move(status).error();
      if (response.deleted_size() > 0) {
        error.message += "; the images before it in the command were deleted";
      }
      return Fail(std::move(error).WithContext("cannot delete image " + Utf8(path)));
    }
    response.add_deleted(Utf8(path));
  }
  return response;
}

Result<v1::CollectGarbageResponse> CollectGarbage(Call& call,
                                                  const v1::CollectGarbageRequest& request) {
  if (request.has_repository()) return CollectGarbageOfRepository(call, request);
  STASIS_ASSIGN(const std::string store, StoreOf(call, request.store()));
  v1::CollectGarbageResponse response;
  if (!PathExists(store)) return response;
  STASIS_ASSIGN(auto report, store::CollectGarbage(store));
  for (const std::string& name : report.swept) response.add_removed(Utf8(name));
  if (store == call.paths.images()) ForgetSentImages(call, response);
  response.set_images(report.images);
  response.set_packs(report.packs);
  response.set_freed_units(report.freed_units);
  response.set_freed_bytes(report.freed_bytes);
  response.set_unused_bytes(report.unused_bytes);
  for (const auto& skipped : report.skipped) {
    auto& message = *response.add_left_alone();
    message.set_path(Utf8(skipped.path));
    message.set_why(Utf8(skipped.why));
    message.set_busy(skipped.busy);
  }
  return response;
}

}  // namespace stasis::api
