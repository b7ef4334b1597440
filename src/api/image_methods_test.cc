#include <gtest/gtest.h>

#include "api/methods.h"
#include "store/image_testing.h"

namespace stasis::api {
namespace {

using store::testing::MakeImage;
using store::testing::TempStore;
using store::testing::WriteFile;

Call CallFor(const TempStore& store) {
  Call call;
  call.paths.data = store.path() + "/none";
  call.paths.image_store = store.path();
  return call;
}

TEST(ImageMethods, ListHasDamagedImagesToo) {
  TempStore store;
  MakeImage(store.path(), "good");
  WriteFile(MakeImage(store.path(), "bad") + "/manifest.pb", "x");
  Call call = CallFor(store);
  auto response = ListImages(call, {});
  ASSERT_TRUE(response) << response.error().ToString();
  ASSERT_EQ(response->images_size(), 2);
  EXPECT_EQ(response->images(0).name(), "bad");
  EXPECT_FALSE(response->images(0).ok());
  EXPECT_NE(response->images(0).error().find("manifest.pb is damaged"), std::string::npos);
  EXPECT_TRUE(response->images(1).ok());
  EXPECT_EQ(response->images(1).job(), "llama");
}

TEST(ImageMethods, VerificationNamesWhatItFound) {
  TempStore store;
  const std::string path = MakeImage(store.path(), "a");
  Call call = CallFor(store);
  v1::VerifyImageRequest request;
  request.set_image("a");
  auto response = VerifyImage(call, request);
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_TRUE(response->ok());
  EXPECT_EQ(response->files(), 4u);
  EXPECT_EQ(response->origin().by(), "unknown");
  WriteFile(path + "/cpu/more.img", "x");
  response = VerifyImage(call, request);
  ASSERT_TRUE(response);
  ASSERT_EQ(response->findings_size(), 1);
  EXPECT_EQ(response->findings(0).path(), "cpu/more.img");
  EXPECT_NE(response->error().message().find("cpu/more.img is not part of the image"),
            std::string::npos);
}

TEST(ImageMethods, RelativePathsAreRejected) {
  TempStore store;
  Call call = CallFor(store);
  v1::InspectImageRequest image;
  image.set_image("./a");
  EXPECT_EQ(InspectImage(call, image).error().code, Code::kInvalidArgument);
  v1::ListImagesRequest folder;
  folder.set_store("images");
  EXPECT_EQ(ListImages(call, folder).error().code, Code::kInvalidArgument);
}

}  // namespace
}  // namespace stasis::api
