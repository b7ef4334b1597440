// HIP's own header, for the checks at compile time. tools/hip.sh unpacks it. Include it last.
#pragma once

#include <limits.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include <type_traits>
#include <utility>

#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
// Included as C, because in C++ many of the functions are overloaded and their names have no single
// type.
#pragma GCC diagnostic ignored "-Wbuiltin-macro-redefined"
#define wchar_t HipWchar  // a keyword of C++ that C's stddef.h defines
#undef __cplusplus        // NOLINT(bugprone-reserved-identifier)
#include <hip/hip_runtime_api.h>
#undef wchar_t

// HIP 6 maps these names to the latest version.
#undef hipChooseDevice
#undef hipDeviceProp_t
#undef hipGetDeviceProperties
