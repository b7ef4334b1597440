# Compiler, sanitizers, and libraries available to every room.

find_program(CCACHE ccache)
if(CCACHE)
  # Paths relative to the checkout, so that all clones on a machine share what was compiled.
  set(CMAKE_CXX_COMPILER_LAUNCHER env CCACHE_BASEDIR=${CMAKE_SOURCE_DIR} CCACHE_NOHASHDIR=1 ${CCACHE})
  set(CMAKE_C_COMPILER_LAUNCHER ${CMAKE_CXX_COMPILER_LAUNCHER})
endif()
find_program(MOLD mold)
if(MOLD AND NOT STASIS_SANITIZE)
  if(CMAKE_CROSSCOMPILING)
    # A cross compiler does not look for mold on PATH. This folder has it under the name ld.
    add_link_options(-B/usr/libexec/mold)
  else()
    add_link_options(-fuse-ld=mold)
  endif()
endif()

# GCC 12 wrongly reports overlapping copies in every "text" + string (GCC bug 105651).
add_compile_options(-Wall -Wextra -Wno-missing-field-initializers $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
# On arm64 char is unsigned by default. Code and tests must not differ between machines.
if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
  add_compile_options(-fsigned-char)
endif()
option(STASIS_WERROR "Warnings are errors" ON)
if(STASIS_WERROR)
  add_compile_options(-Werror)
endif()

set(STASIS_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")
if(STASIS_SANITIZE)
  add_compile_options(-fsanitize=${STASIS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${STASIS_SANITIZE})
  add_compile_definitions(STASIS_SANITIZED)
endif()
# GCC 12 reports false positives in inlined standard containers and optionals.
if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
  add_compile_options(-Wno-error=maybe-uninitialized -Wno-error=stringop-overflow -Wno-error=tsan)
endif()

option(STASIS_FUZZ "Compile with coverage instrumentation for fuzzers; needs clang" OFF)
if(STASIS_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Hardening of release builds.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  include(CheckPIESupported)
  check_pie_supported()
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/hardening.table)
  file(STRINGS ${CMAKE_SOURCE_DIR}/cmake/hardening.table flags REGEX "^(any|${CMAKE_SYSTEM_PROCESSOR}) ")
  list(TRANSFORM flags REPLACE "^[^ ]+ +" "")
  add_compile_options(${flags})
  add_link_options(-Wl,-z,relro -Wl,-z,now -Wl,-z,noexecstack)
endif()

# Programs must run on machines without these libraries, so they are linked statically where
# possible.
add_link_options(-Wl,--as-needed)
if(NOT STASIS_SANITIZE)
  add_library(stasis_glibc_floor STATIC ${CMAKE_SOURCE_DIR}/cmake/glibc_floor.c)
  link_libraries(stasis_glibc_floor)
  add_link_options($<$<LINK_LANGUAGE:CXX>:-static-libstdc++> -static-libgcc
    -Wl,-u,arc4random -Wl,-u,_dl_find_object)
endif()
set(Protobuf_USE_STATIC_LIBS ON)
find_package(Threads REQUIRED)
find_package(Protobuf REQUIRED)
find_package(GTest REQUIRED)
find_package(fmt REQUIRED)
find_package(CLI11 REQUIRED)
find_package(nlohmann_json REQUIRED)

# stasis::fmt. Debian has no static fmt, so release programs contain one that is compiled here; other
# presets use the shared library.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  add_library(stasis_fmt STATIC ${CMAKE_SOURCE_DIR}/cmake/fmt.cc)
  add_library(stasis::fmt ALIAS stasis_fmt)
else()
  add_library(stasis::fmt ALIAS fmt::fmt)
endif()

# stasis::zstd and so on: the static library if there is one.
foreach(lib zstd lz4 xxhash sqlite3 ssl crypto expat)
  find_library(STASIS_LIB_${lib} NAMES lib${lib}.a ${lib} REQUIRED)
  add_library(stasis::${lib} UNKNOWN IMPORTED)
  set_target_properties(stasis::${lib} PROPERTIES IMPORTED_LOCATION ${STASIS_LIB_${lib}})
endforeach()

# GNU ld, which links sanitized programs, needs libcrypto after libssl.
set_target_properties(stasis::ssl PROPERTIES INTERFACE_LINK_LIBRARIES stasis::crypto)

# stasis::curl. Only the library that tools/curl.sh builds can be used: others need more libraries, or bring their own
# OpenSSL.
set(STASIS_CURL_DIR ${STASIS_CACHE}/curl CACHE PATH "libcurl as tools/curl.sh builds it")
if(NOT EXISTS ${STASIS_CURL_DIR}/lib/libcurl.a)
  message(FATAL_ERROR "there is no libcurl in ${STASIS_CURL_DIR}; tools/curl.sh builds it there (./run does so unless STASIS_NO_SETUP is set)")
endif()
add_library(stasis::curl STATIC IMPORTED)
set_target_properties(stasis::curl PROPERTIES
  IMPORTED_LOCATION ${STASIS_CURL_DIR}/lib/libcurl.a
  INTERFACE_INCLUDE_DIRECTORIES ${STASIS_CURL_DIR}/include
  INTERFACE_COMPILE_DEFINITIONS CURL_STATICLIB
  INTERFACE_LINK_LIBRARIES "stasis::ssl;Threads::Threads")

# A CUDA toolkit is optional. If there is one, its header is compared with the declarations here,
# and the workloads are also built for real GPUs.
find_path(STASIS_CUDA_INCLUDE cuda.h PATHS /usr/local/cuda/include $ENV{CUDA_HOME}/include NO_DEFAULT_PATH)
find_program(STASIS_NVCC nvcc PATHS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
# The same for AMD's compiler.
find_program(STASIS_HIPCC hipcc PATHS /opt/rocm/bin $ENV{ROCM_PATH}/bin)
