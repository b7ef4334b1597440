// Implements methods of methods.h for images in a repository.
#pragma once

#include <string>

#include "api/call.h"
#include "base/parallel.h"
#include "base/result.h"
#include "repository/opened.h"
#include "stasis/v1/stasis.pb.h"

namespace stasis::api {

Result<v1::ListImagesResponse> ListImagesOfRepository(Call& call,
                                                      const v1::ListImagesRequest& request);
Result<v1::InspectImageResponse> InspectImageOfRepository(Call& call,
                                                          const v1::InspectImageRequest& request);
Result<v1::VerifyImageResponse> VerifyImageOfRepository(Call& call,
                                                        const v1::VerifyImageRequest& request);
Result<v1::DeleteImagesResponse> DeleteImagesOfRepository(Call& call,
                                                          const v1::DeleteImagesRequest& request);
Result<v1::CollectGarbageResponse> CollectGarbageOfRepository(
    Call& call, const v1::CollectGarbageRequest& request);

// Says why a sweep has kept an image of a killed migration (repository/sent_images.h).
std::string WhyKept(const repository::OpenedRepository& opened, const std::string& image);

// Returns a function that emits `phase` with its bytes, and returns false when the call is
// cancelled.
Progress BytesProgressOf(Call& call, const std::string& phase);

}  // namespace stasis::api
