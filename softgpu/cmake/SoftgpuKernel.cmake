# softgpu_kernel_image(TARGET FILE.cu [OUTPUT_DIRECTORY DIR]) builds a kernel file for softgpu as
# DIR/TARGET.softgpu.so (default: the current binary directory). A program loads it with
# cuModuleLoad.
set(SOFTGPU_KERNEL_ROOT ${CMAKE_CURRENT_LIST_DIR}/..)
function(softgpu_kernel_image TARGET FILE)
  cmake_parse_arguments(ARG "" "OUTPUT_DIRECTORY" "" ${ARGN})
  if(NOT ARG_OUTPUT_DIRECTORY)
    set(ARG_OUTPUT_DIRECTORY ${CMAKE_CURRENT_BINARY_DIR})
  endif()
  add_library(${TARGET} MODULE ${FILE} ${SOFTGPU_KERNEL_ROOT}/kernel/runtime.cc)
  set_source_files_properties(${FILE} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
  target_include_directories(${TARGET} PRIVATE ${SOFTGPU_KERNEL_ROOT}/include)
  # Globals are found by name, but never those of another library (-Bsymbolic). After loading, only
  # the globals and data of the kernel file are writable, because the driver replaces these pages by
  # device memory. Hence no start files are linked and everything else is RELRO.
  target_compile_options(${TARGET} PRIVATE -fvisibility=default $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique>
                         -fno-sanitize=all -fno-exceptions -O3)
  target_link_options(${TARGET} PRIVATE -nostartfiles -static-libgcc -static-libstdc++ -fno-sanitize=all
                      LINKER:-Bsymbolic,-z,relro,-z,now,--no-undefined)
  if(CMAKE_SYSTEM_PROCESSOR STREQUAL "aarch64")
    # The driver replaces whole pages, which may have 64 KiB here.
    target_link_options(${TARGET} PRIVATE LINKER:-z,max-page-size=65536,-z,common-page-size=65536)
  endif()
  set_target_properties(${TARGET} PROPERTIES PREFIX "" OUTPUT_NAME ${TARGET}.softgpu SUFFIX .so
                        CXX_VISIBILITY_PRESET default LIBRARY_OUTPUT_DIRECTORY ${ARG_OUTPUT_DIRECTORY})
endfunction()
