#include <gtest/gtest.h>

#include "api/methods.h"
#include "base/file.h"
#include "store/image_folder.h"
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

TEST(ImageMethods, GcForgetsImagesInRepositoriesThatWereRemoved) {
  TempStore store;
  auto note = store::MakeHidden(store.path(), "job-moving-1", store::kSent);
  ASSERT_TRUE(note);
  WriteFile(store / note->name + "/repository", "0123456789abcdef0123456789abcdef");
  note->fd.Reset();
  Call call = CallFor(store);
  const std::string record = call.paths.data + "/repositories/fleet.json";
  ASSERT_TRUE(MakeDirs(call.paths.data + "/repositories"));
  WriteFile(record, "damaged");
  auto response = CollectGarbage(call, {});
  ASSERT_TRUE(response) << response.error().ToString();
  EXPECT_EQ(response->removed_size(), 0) << "it may be the note of this repository";
  ASSERT_EQ(response->left_alone_size(), 1);
  EXPECT_NE(response->left_alone(0).why().find("fleet is damaged"), std::string::npos);
  ASSERT_TRUE(RemoveFile(record));
  response = CollectGarbage(call, {});
  ASSERT_TRUE(response) << response.error().ToString();
  ASSERT_EQ(response->removed_size(), 1);
  EXPECT_EQ(response->removed(0), note->name);
  EXPECT_FALSE(PathExists(store / note->name));
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
