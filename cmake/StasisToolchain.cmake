# Compiler, sanitizers and the libraries that every room may use.

find_program(CCACHE ccache)
if(CCACHE)
  set(CMAKE_C_COMPILER_LAUNCHER ${CCACHE})
  set(CMAKE_CXX_COMPILER_LAUNCHER ${CCACHE})
endif()
find_program(MOLD mold)
if(MOLD AND NOT STASIS_SANITIZE)
  add_link_options(-fuse-ld=mold)
endif()

# GCC 12 sees overlapping copies in every "text" + string (its bug 105651).
add_compile_options(-Wall -Wextra -Wno-missing-field-initializers $<$<COMPILE_LANG_AND_ID:CXX,GNU>:-Wno-restrict>)
option(STASIS_WERROR "Warnings are errors" ON)
if(STASIS_WERROR)
  add_compile_options(-Werror)
endif()

set(STASIS_SANITIZE "" CACHE STRING "Sanitizers: address,undefined or thread")
if(STASIS_SANITIZE)
  add_compile_options(-fsanitize=${STASIS_SANITIZE} -fno-omit-frame-pointer -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${STASIS_SANITIZE})
  # GCC 12 reports false positives in inlined standard containers under sanitizers.
  if(CMAKE_CXX_COMPILER_ID STREQUAL GNU)
    add_compile_options(-Wno-error=maybe-uninitialized -Wno-error=stringop-overflow -Wno-error=tsan)
  endif()
endif()

option(STASIS_FUZZ "Everything is compiled so that a fuzzer sees which way it goes; needs clang" OFF)
if(STASIS_FUZZ)
  add_compile_options(-fsanitize=fuzzer-no-link)
endif()

# Our programs run on machines that have none of our libraries, so whatever can be inside them is.
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

# Debian has no static fmt. Its headers hold all of it, after which the linker finds that the shared one
# is not needed. Only for what is shipped: it costs a second per file.
if(CMAKE_BUILD_TYPE STREQUAL "Release")
  target_compile_definitions(fmt::fmt INTERFACE FMT_HEADER_ONLY=1)
endif()

# stasis::zstd and so on: the static library where there is one.
foreach(lib zstd lz4 xxhash sqlite3)
  find_library(STASIS_LIB_${lib} NAMES lib${lib}.a ${lib} REQUIRED)
  add_library(stasis::${lib} UNKNOWN IMPORTED)
  set_target_properties(stasis::${lib} PROPERTIES IMPORTED_LOCATION ${STASIS_LIB_${lib}})
endforeach()

# A CUDA toolkit is never needed. Where there is one, our declarations are compared with its header and
# the workloads are built for real GPUs too.
find_path(STASIS_CUDA_INCLUDE cuda.h PATHS /usr/local/cuda/include $ENV{CUDA_HOME}/include NO_DEFAULT_PATH)
find_program(STASIS_NVCC nvcc PATHS /usr/local/cuda/bin $ENV{CUDA_HOME}/bin)
