# A room is a source directory with one purpose and one namespace. File names have these meanings:
#   x.cc x.h        part of the library stasis_<room>
#   x.proto         generated into the same library
#   x_test.cc       part of the test program <room>_test, run by ctest
#   x_fuzz.cc       a separate program in the asan preset: see stasis_fuzz()
#   x_main.cc       a separate program: see stasis_program()

# Most of a file's compile time goes to headers and their templates, which a unity build reads once. The option is off
# in dev, which proves that each file includes what it uses.
option(STASIS_UNITY "Each room's files are compiled in one piece" OFF)

# The targets of the sanitizer presets: all unit tests (asan), and the unit tests of code with
# threads (tsan).
add_custom_target(unit_tests)
add_custom_target(thread_tests)

# Generated code that clang-tidy needs to parse the sources.
add_custom_target(generated)

# stasis_gtest(NAME PROGRAM LABELS label... [SHARDS count]): adds the ctest entry NAME that
# runs a test program. SHARDS distributes the program's cases over that many entries (NAME.1,
# NAME.2, ...), which can run in parallel. Each entry writes gtest/ENTRY.xml for
# `tools/gtest_cases.py`, because ctest does not see single cases.
function(stasis_gtest NAME PROGRAM)
  cmake_parse_arguments(ARG "" "SHARDS" "LABELS" ${ARGN})
  if(NOT ARG_SHARDS)
    set(ARG_SHARDS 1)
  endif()
  foreach(shard RANGE 1 ${ARG_SHARDS})
    set(entry ${NAME})
    if(ARG_SHARDS GREATER 1)
      string(APPEND entry .${shard})
    endif()
    math(EXPR index "${shard} - 1")
    add_test(NAME ${entry} COMMAND ${PROGRAM})
    set_tests_properties(${entry} PROPERTIES TIMEOUT 600 LABELS "${ARG_LABELS}" ENVIRONMENT
      "GTEST_OUTPUT=xml:${CMAKE_BINARY_DIR}/gtest/${entry}.xml;GTEST_TOTAL_SHARDS=${ARG_SHARDS};GTEST_SHARD_INDEX=${index}")
  endforeach()
endfunction()

# stasis_in_one_piece(TARGET APART file...): with STASIS_UNITY, compiles the sources of TARGET as
# one file that includes them. Called at the end of the directory's CMakeLists.txt
# (stasis_in_one_piece_later). APART, generated sources, and sources with their own definitions are
# compiled separately. APART lists files whose unnamed namespace has a name that another file of the
# target also has. CMake's own unity files contain absolute paths, so ccache would recompile
# everything in another checkout; these paths are relative.
function(stasis_in_one_piece TARGET)
  cmake_parse_arguments(ARG "" "" "APART" ${ARGN})
  if(NOT STASIS_UNITY)
    return()
  endif()
  file(RELATIVE_PATH up ${CMAKE_CURRENT_BINARY_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  get_target_property(sources ${TARGET} SOURCES)
  set(piece ${CMAKE_CURRENT_BINARY_DIR}/${TARGET}_all.cc)
  set(alone ${piece})
  set(includes)
  foreach(source ${sources})
    get_source_file_property(definitions ${source} COMPILE_DEFINITIONS)
    string(REPLACE "${CMAKE_CURRENT_SOURCE_DIR}/" "" source ${source})
    if(definitions OR source IN_LIST ARG_APART OR IS_ABSOLUTE ${source} OR NOT source MATCHES "\\.cc$")
      list(APPEND alone ${source})
    else()
      string(APPEND includes "#include \"${up}/${source}\"\n")
    endif()
  endforeach()
  file(CONFIGURE OUTPUT ${piece} CONTENT "${includes}" @ONLY)
  set_target_properties(${TARGET} PROPERTIES SOURCES "${alone}")
  # GCC warns about a type in a header if a member's type is in an unnamed namespace. This is fine in a .cc file, but
  # GCC cannot see the difference in a unity build.
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${TARGET} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

function(stasis_in_one_piece_later)
  list(JOIN ARGN " " arguments)
  cmake_language(EVAL CODE "cmake_language(DEFER CALL stasis_in_one_piece ${arguments})")
endfunction()

# stasis_compiled_quickly(TARGET): in release, compiles with -O1 instead of -O2, in two thirds of the time.
# stasis_bulk(TARGET): under sanitizers, compiles with -O1 instead of -O0, because tests then spend their time in this code.
function(stasis_compiled_quickly TARGET)
  if(CMAKE_BUILD_TYPE STREQUAL "Release")
    target_compile_options(${TARGET} PRIVATE -O1)
  endif()
endfunction()

function(stasis_bulk TARGET)
  if(STASIS_SANITIZE)
    target_compile_options(${TARGET} PRIVATE -O1)
  endif()
endfunction()

# stasis_room(NAME [BULK] [DEPS target...] [PROTOS file...] [APART file...] [THREADS] [INTEGRATION file...]
# [SHARDS count] [UNIT_SHARDS count]). BULK: the code handles data in bulk, so it is not
# compiled quickly. APART: see stasis_in_one_piece(). THREADS: also run the unit
# tests under ThreadSanitizer. INTEGRATION lists test files that start real helpers, CRIU or commands:
# they form <room>_integration_test, which runs without sanitizers. SHARDS applies to these,
# UNIT_SHARDS to the others; see stasis_gtest().
function(stasis_room NAME)
  cmake_parse_arguments(ARG "THREADS;BULK" "SHARDS;UNIT_SHARDS" "DEPS;PROTOS;APART;WITHOUT;INTEGRATION" ${ARGN})
  file(GLOB sources RELATIVE ${CMAKE_CURRENT_SOURCE_DIR} CONFIGURE_DEPENDS *.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz|main)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")
  if(ARG_WITHOUT)
    list(REMOVE_ITEM sources ${ARG_WITHOUT})
  endif()
  if(ARG_INTEGRATION)
    list(REMOVE_ITEM tests ${ARG_INTEGRATION})
  endif()

  foreach(proto ${ARG_PROTOS})
    get_filename_component(proto_file ${proto} ABSOLUTE)
    stasis_proto(${proto_file} generated)
    list(APPEND sources ${generated})
  endforeach()

  if(NOT sources)
    message(FATAL_ERROR "room ${NAME} has no sources")
  endif()
  add_library(stasis_${NAME} STATIC ${sources})
  target_include_directories(stasis_${NAME} PUBLIC ${CMAKE_SOURCE_DIR}/src)
  if(ARG_PROTOS)
    target_include_directories(stasis_${NAME} SYSTEM PUBLIC ${CMAKE_BINARY_DIR}/proto)
    # The full library, because gRPC uses it and it must not be linked twice. As it is static, only
    # used parts are included.
    target_link_libraries(stasis_${NAME} PUBLIC protobuf::libprotobuf)
  endif()
  target_link_libraries(stasis_${NAME} PUBLIC ${ARG_DEPS} Threads::Threads)
  if(ARG_BULK)
    stasis_bulk(stasis_${NAME})
  else()
    stasis_compiled_quickly(stasis_${NAME})
  endif()
  stasis_in_one_piece_later(stasis_${NAME} APART ${ARG_APART})

  if(tests)
    stasis_room_test(${NAME}_test ${NAME} "${tests}" "${ARG_APART}")
    add_dependencies(unit_tests ${NAME}_test)
    set(labels unit)
    if(ARG_THREADS)
      list(APPEND labels threads)
      add_dependencies(thread_tests ${NAME}_test)
    endif()
    stasis_gtest(unit.${NAME} ${NAME}_test SHARDS ${ARG_UNIT_SHARDS} LABELS ${labels})
  endif()
  if(ARG_INTEGRATION)
    stasis_room_test(${NAME}_integration_test ${NAME} "${ARG_INTEGRATION}" "${ARG_APART}")
    stasis_gtest(integration.${NAME} ${NAME}_integration_test SHARDS ${ARG_SHARDS} LABELS integration)
  endif()
endfunction()

# stasis_room_test(PROGRAM ROOM SOURCES APART): adds a test program of a room.
function(stasis_room_test PROGRAM ROOM SOURCES APART)
  add_executable(${PROGRAM} ${SOURCES})
  target_link_libraries(${PROGRAM} PRIVATE stasis_${ROOM} GTest::gtest GTest::gmock GTest::gtest_main)
  if(STASIS_SANITIZE MATCHES address AND CMAKE_CXX_COMPILER_ID STREQUAL "Clang" AND
     CMAKE_CXX_COMPILER_VERSION VERSION_LESS 17)
    target_sources(${PROGRAM} PRIVATE ${CMAKE_SOURCE_DIR}/cmake/asan_fork.cc)
  endif()
  set_target_properties(${PROGRAM} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  stasis_compiled_quickly(${PROGRAM})
  stasis_in_one_piece_later(${PROGRAM} APART ${APART})
endfunction()

# stasis_proto(FILE OUT_VAR): generates C++ from one .proto; it is included by its path below src/
# or proto/.
function(stasis_proto FILE OUT)
  foreach(root ${CMAKE_SOURCE_DIR}/src ${CMAKE_SOURCE_DIR}/proto)
    string(FIND ${FILE} "${root}/" at)
    if(at EQUAL 0)
      set(proto_root ${root})
    endif()
  endforeach()
  file(RELATIVE_PATH rel ${proto_root} ${FILE})
  string(REGEX REPLACE "\\.proto$" "" stem ${rel})
  set(out ${CMAKE_BINARY_DIR}/proto/${stem}.pb.cc ${CMAKE_BINARY_DIR}/proto/${stem}.pb.h)
  file(MAKE_DIRECTORY ${CMAKE_BINARY_DIR}/proto)
  add_custom_command(
    OUTPUT ${out}
    COMMAND protobuf::protoc --cpp_out=lite:${CMAKE_BINARY_DIR}/proto -I ${proto_root} ${FILE}
    DEPENDS ${FILE} VERBATIM)
  set_source_files_properties(${out} PROPERTIES COMPILE_OPTIONS "-w;$<$<CONFIG:Release>:-O1>")
  stasis_generated(${out})
  set(${OUT} ${out} PARENT_SCOPE)
endfunction()

# stasis_generated(file...): adds files written by a custom command of this directory to the target
# `generated`.
function(stasis_generated)
  list(GET ARGN 0 first)
  file(RELATIVE_PATH name ${CMAKE_BINARY_DIR} ${first})
  string(REGEX REPLACE "[^a-zA-Z0-9]" "_" name generate_${name})
  add_custom_target(${name} DEPENDS ${ARGN})
  add_dependencies(generated ${name})
endfunction()

# stasis_program(NAME SOURCES file... DEPS target... [LIBEXEC]): adds a program; LIBEXEC is for
# programs that only other Stasis programs start.
function(stasis_program NAME)
  cmake_parse_arguments(ARG "LIBEXEC" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS})
  stasis_compiled_quickly(${NAME})
  if(ARG_LIBEXEC)
    set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${STASIS_LIBEXEC_DIR})
    install(TARGETS ${NAME} DESTINATION libexec)
  else()
    install(TARGETS ${NAME} DESTINATION bin)
  endif()
endfunction()

# All fuzzers; empty if they cannot be built.
add_custom_target(fuzzers)

# stasis_fuzz(NAME [IN folder] [SOURCES file...] DEPS target...): adds the fuzzer NAME_fuzz.cc, in a
# folder of this room, whose corpus is in tests/fuzz/corpus/NAME. SOURCES lists the files of this
# room that it needs, if it does not need the whole library.
function(stasis_fuzz NAME)
  if(NOT STASIS_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "IN" "SOURCES;DEPS" ${ARGN})
  set(source ${NAME}_fuzz.cc)
  if(ARG_IN)
    set(source ${ARG_IN}/${source})
  endif()
  add_executable(${NAME}_fuzz EXCLUDE_FROM_ALL ${source} ${ARG_SOURCES})
  target_include_directories(${NAME}_fuzz PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${NAME}_fuzz PRIVATE ${ARG_DEPS})
  target_link_options(${NAME}_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(${NAME}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(fuzzers ${NAME}_fuzz)
endfunction()
