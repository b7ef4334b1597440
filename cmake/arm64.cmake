# Toolchain file of a build for arm64: Debian's cross compiler, and the libraries that
# tools/arm64_sysroot.sh unpacks. The generators protoc and grpc_cpp_plugin are this machine's.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_C_COMPILER aarch64-linux-gnu-gcc)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
get_filename_component(STASIS_CACHE ${CMAKE_CURRENT_LIST_DIR}/../.cache/arm64 ABSOLUTE)
set(CMAKE_SYSROOT ${STASIS_CACHE}/sysroot)
set(CMAKE_LIBRARY_ARCHITECTURE aarch64-linux-gnu)
set(CMAKE_FIND_ROOT_PATH_MODE_PROGRAM NEVER)
set(CMAKE_FIND_ROOT_PATH_MODE_LIBRARY ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_INCLUDE ONLY)
set(CMAKE_FIND_ROOT_PATH_MODE_PACKAGE ONLY)
set(ENV{PKG_CONFIG_SYSROOT_DIR} ${CMAKE_SYSROOT})
set(ENV{PKG_CONFIG_LIBDIR} ${CMAKE_SYSROOT}/usr/lib/aarch64-linux-gnu/pkgconfig:${CMAKE_SYSROOT}/usr/share/pkgconfig)

# Unit tests can run without a machine. What QEMU cannot emulate in a process (CRIU, ptrace, /proc of
# the emulated program) needs tools/arm64.sh.
find_program(STASIS_QEMU_AARCH64 NAMES qemu-aarch64 qemu-aarch64-static)
if(STASIS_QEMU_AARCH64)
  set(CMAKE_CROSSCOMPILING_EMULATOR ${STASIS_QEMU_AARCH64} -L ${CMAKE_SYSROOT})
endif()
