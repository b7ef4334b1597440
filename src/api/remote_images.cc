#include "api/remote_images.h"

#include <fmt/format.h>

#include "api/error_message.h"
#include "api/repository_choice.h"
#include "api/usage_error.h"
#include "api/utf8.h"
#include "base/secret.h"
#include "repository/gc.h"
#include "repository/images.h"
#include "repository/layout.h"
#include "repository/sent_images.h"
#include "store/image_folder.h"
#include "store/image_report.h"
#include "store/unit_names.h"

namespace stasis::api {
namespace {

constexpr int64_t kSecond = 1'000'000'000;

std::string NameIn(const repository::OpenedRepository& opened, const std::string& image) {
  return fmt::format("{}/{}", opened.registration().name, image);
}

void AddSkipped(v1::CollectGarbageResponse& response, const std::string& path,
                const std::string& why) {
  auto& message = *response.add_left_alone();
  message.set_path(Utf8(path));
  message.set_why(Utf8(why));
}

void AddSwept(const repository::OpenedRepository& opened, const repository::SweptImages& swept,
              v1::CollectGarbageResponse& response) {
  for (const std::string& name : swept.deleted) response.add_removed(Utf8(NameIn(opened, name)));
  for (const std::string& name : swept.kept) {
    AddSkipped(response, NameIn(opened, name), WhyKept(opened, name));
  }
  for (const auto& failure : swept.failures) {
    AddSkipped(
        response, failure.what,
        "the images of a killed migration could not be deleted: " + failure.error.ToString());
  }
}

}  // namespace

std::string WhyKept(const repository::OpenedRepository& opened, const std::string& image) {
  return fmt::format(
      "it may be the only copy of a program whose migration was killed; `stasis image delete {} -R "
      "{}` deletes it",
      image, opened.registration().name);
}

Progress BytesProgressOf(Call& call, const std::string& phase) {
  return [&call, phase](uint64_t done, uint64_t total) {
    if (call.emit) {
      v1::OperationEvent event;
      event.mutable_phase_bytes()->set_name(phase);
      event.mutable_phase_bytes()->set_done(done);
      event.mutable_phase_bytes()->set_total(total);
      call.emit(event);
    }
    return !call.cancelled || !call.cancelled();
  };
}

Result<v1::ListImagesResponse> ListImagesOfRepository(Call& call,
                                                      const v1::ListImagesRequest& request) {
  STASIS_ASSIGN(const auto opened, OpenRepository(call, request.repository()));
  v1::ListImagesResponse response;
  response.set_store(Utf8(opened->repository().store().Name()));
  const auto add = [&](const std::string& name) {
    v1::ListImagesResponse::Image* message = response.add_images();
    message->set_name(name);
    message->set_path(Utf8(NameIn(*opened, name)));
    message->set_ok(true);
    return message;
  };
  if (request.brief()) {
    STASIS_ASSIGN(const auto objects,
                  opened->repository().List(repository::kImagesPrefix, {Deadline(), call.stop}));
    for (const auto& object : objects) {
      if (const auto name = repository::ParseImageKey(object.key)) add(*name);
    }
    return response;
  }
  STASIS_ASSIGN(const auto images,
                repository::ListImages(opened->repository(), {Deadline(), call.stop}));
  for (const repository::ImageSummary& image : images) {
    v1::ListImagesResponse::Image& message = *add(image.name);
    if (image.error) {
      message.set_ok(false);
      message.set_error(Utf8(image.error->ToString()));
      continue;
    }
    message.set_id(image.id.Hex());
    message.set_created(store::Utc(image.created_unix_ns));
    message.set_job(Utf8(image.job));
    for (const std::string& argument : image.command) message.add_command(Utf8(argument));
    message.set_size_bytes(image.memory_bytes);
    message.set_device_bytes(image.device_bytes);
  }
  return response;
}

Result<v1::InspectImageResponse> InspectImageOfRepository(Call& call,
                                                          const v1::InspectImageRequest& request) {
  STASIS_ASSIGN(const auto opened, OpenRepository(call, request.repository()));
  STASIS_TRY(store::CheckImageName(request.image()));
  STASIS_ASSIGN(
      const bool exists,
      opened->repository().Exists(repository::ImageKey(request.image()), {Deadline(), call.stop}));
  if (!exists) {
    return Fail(Code::kNotFound, Domain::kImage, 0,
                fmt::format("{} has no image {}", opened->registration().name, request.image()));
  }
  STASIS_ASSIGN(const auto record,
                Annotate(opened->repository().ReadImage(request.image(), {Deadline(), call.stop}),
                         "read " + NameIn(*opened, request.image())));
  v1::InspectImageResponse response;
  response.set_document(
      store::InspectJson(record.manifest, NameIn(*opened, request.image())).dump());
  return response;
}

Result<v1::VerifyImageResponse> VerifyImageOfRepository(Call& call,
                                                        const v1::VerifyImageRequest& request) {
  if (request.not_before_unix_s() < 0 || request.not_before_unix_s() > INT64_MAX / kSecond) {
    return FailUsage("the time of `not before` is out of range");
  }
  STASIS_ASSIGN(const auto opened, OpenRepository(call, request.repository()));
  repository::VerifyOptions options;
  options.not_before_unix_ns = request.not_before_unix_s() * kSecond;
  STASIS_ASSIGN(const BlockSecret naming, NamingSecretOf(call.paths));
  const store::UnitNames names(naming);
  options.names = &names;
  options.progress = BytesProgressOf(call, "verify");
  options.stop = call.stop;
  STASIS_ASSIGN(const auto report,
                repository::VerifyImage(opened->repository(), request.image(), options));
  const std::string name = NameIn(*opened, request.image());
  v1::VerifyImageResponse response;
  response.set_path(Utf8(name));
  response.mutable_origin()->set_by(store::OriginName(store::Origin::kUnknown));
  response.set_ok(report.findings.empty());
  for (const std::string& finding : report.findings) {
    auto& message = *response.add_findings();
    message.set_path(Utf8(request.image()));
    message.set_message(Utf8(finding));
  }
  response.set_files(report.packs);
  response.set_bytes(report.bytes);
  response.set_seconds(report.seconds);
  if (!report.findings.empty()) {
    const auto damaged =
        Fail(Code::kDataLoss, Domain::kImage, 0,
             fmt::format("the check of image {} failed: {}", name, report.findings.front()));
    *response.mutable_error() = EncodeError(damaged.value());
  }
  return response;
}

Result<v1::DeleteImagesResponse> DeleteImagesOfRepository(Call& call,
                                                          const v1::DeleteImagesRequest& request) {
  STASIS_ASSIGN(const auto opened, OpenRepository(call, request.repository()));
  v1::DeleteImagesResponse response;
  for (const std::string& name : request.images()) {
    if (Status deleted =
            repository::DeleteImage(opened->repository(), name, {Deadline(), call.stop});
        !deleted) {
      Error error = std::move(deleted).error();
      if (response.deleted_size() > 0) {
        error.message += "; the images before it in the command were deleted";
      }
      return Fail(
          std::move(error).WithContext("cannot delete image " + Utf8(NameIn(*opened, name))));
    }
    response.add_deleted(Utf8(NameIn(*opened, name)));
  }
  return response;
}

Result<v1::CollectGarbageResponse> CollectGarbageOfRepository(
    Call& call, const v1::CollectGarbageRequest& request) {
  STASIS_ASSIGN(const auto opened, OpenRepository(call, request.repository()));
  STASIS_ASSIGN(const auto swept,
                repository::SweepSentImages(call.paths.images(), opened->repository(),
                                            {Deadline(), call.stop}));
  repository::GcOptions options;
  options.progress = BytesProgressOf(call, "gc");
  options.stop = call.stop;
  STASIS_ASSIGN(const auto report, repository::CollectGarbage(opened->repository(), options));
  v1::CollectGarbageResponse response;
  AddSwept(*opened, swept, response);
  response.set_images(report.images);
  response.set_packs(report.deleted_packs);
  response.set_freed_bytes(report.deleted_bytes);
  response.set_pushes(report.pending);
  response.set_requests(report.requests);
  response.set_retries(report.retries);
  response.set_sent_bytes(report.sent_bytes);
  response.set_received_bytes(report.received_bytes);
  for (const std::string& key : report.unknown) {
    AddSkipped(response, key, "it is not part of the repository's format");
  }
  return response;
}

}  // namespace stasis::api
