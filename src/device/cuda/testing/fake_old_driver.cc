#define STASIS_FAKE_OLD_DRIVER
#include "device/cuda/testing/fake_driver.cc"  // NOLINT(bugprone-suspicious-include)
