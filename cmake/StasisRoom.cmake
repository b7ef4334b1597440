# A room is a folder with one idea and one namespace. Its files say by their names what they are:
#   x.cc x.h        part of the library stasis_<room>
#   x.proto         generated into the same library
#   x_test.cc       part of the test program <room>_test, run by ctest
#   x_fuzz.cc       a program of its own in the fuzz preset: see stasis_fuzz()
#   x_main.cc       a program of its own: see stasis_program()

include(GoogleTest)

option(STASIS_UNIT_TESTS "Unit tests, and those of the agent, are built with everything else, and run by ctest" ON)

# Most of a file's time is its headers and the templates that they bring, which a room in one piece reads
# once. Off in dev, which proves that each file includes what it uses.
option(STASIS_UNITY "Each room's files are compiled in one piece" OFF)

# All unit tests and nothing else: what the sanitizer presets build.
add_custom_target(unit_tests)

# stasis_in_one_piece(TARGET APART file...): as STASIS_UNITY says. APART are files whose unnamed namespace has
# a name that another file of the target has too. All the others are one unit and not several: which files
# meet must not depend on how many there are.
function(stasis_in_one_piece TARGET)
  cmake_parse_arguments(ARG "" "" "APART" ${ARGN})
  set_target_properties(${TARGET} PROPERTIES UNITY_BUILD ${STASIS_UNITY} UNITY_BUILD_BATCH_SIZE 0)
  set_source_files_properties(${ARG_APART} PROPERTIES SKIP_UNITY_BUILD_INCLUSION ON)
  # A type of a header with a member of an unnamed namespace is wrong; one of a .cc file is not, and in one
  # piece they look the same.
  if(STASIS_UNITY AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    target_compile_options(${TARGET} PRIVATE -Wno-subobject-linkage)
  endif()
endfunction()

# stasis_room(NAME [DEPS target...] [PROTOS file...] [APART file...]); APART: see stasis_in_one_piece().
function(stasis_room NAME)
  cmake_parse_arguments(ARG "" "" "DEPS;PROTOS;APART" ${ARGN})
  file(GLOB sources CONFIGURE_DEPENDS *.cc)
  set(tests ${sources})
  list(FILTER sources EXCLUDE REGEX "_(test|bench|fuzz|main)\\.cc$")
  list(FILTER tests INCLUDE REGEX "_test\\.cc$")

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
    # The whole library: beside gRPC's it must not be there a second time. Static, it is what is used of it.
    target_link_libraries(stasis_${NAME} PUBLIC protobuf::libprotobuf)
  endif()
  target_link_libraries(stasis_${NAME} PUBLIC ${ARG_DEPS} Threads::Threads)
  stasis_in_one_piece(stasis_${NAME} APART ${ARG_APART})

  if(tests)
    add_executable(${NAME}_test ${tests})
    target_link_libraries(${NAME}_test PRIVATE stasis_${NAME} GTest::gtest GTest::gmock GTest::gtest_main)
    set_target_properties(${NAME}_test PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
    stasis_in_one_piece(${NAME}_test APART ${ARG_APART})
    if(STASIS_UNIT_TESTS)
      # Each case is a test of its own, so that a skipped one is seen as skipped. Found when ctest runs and
      # not at build time: a program under TSan only starts where test.sh has arranged for it.
      gtest_discover_tests(${NAME}_test TEST_PREFIX unit.${NAME}. DISCOVERY_MODE PRE_TEST
        DISCOVERY_TIMEOUT 60 PROPERTIES LABELS unit TIMEOUT 300)
    else()
      set_target_properties(${NAME}_test PROPERTIES EXCLUDE_FROM_ALL ON)
    endif()
    add_dependencies(unit_tests ${NAME}_test)
  endif()
endfunction()

# stasis_proto(FILE OUT_VAR): C++ of one .proto; included by its path below src/ or proto/.
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
  set_source_files_properties(${out} PROPERTIES COMPILE_OPTIONS "-w")
  set(${OUT} ${out} PARENT_SCOPE)
endfunction()

# stasis_program(NAME SOURCES file... DEPS target... [LIBEXEC]): a program; with LIBEXEC it is one that
# only our own programs start.
function(stasis_program NAME)
  cmake_parse_arguments(ARG "LIBEXEC" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME} ${ARG_SOURCES})
  target_link_libraries(${NAME} PRIVATE ${ARG_DEPS})
  if(ARG_LIBEXEC)
    set_target_properties(${NAME} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${STASIS_LIBEXEC_DIR})
    install(TARGETS ${NAME} DESTINATION libexec)
  else()
    install(TARGETS ${NAME} DESTINATION bin)
  endif()
endfunction()

# All fuzzers and nothing else: what the fuzz preset builds.
if(STASIS_FUZZ)
  add_custom_target(fuzzers)
endif()

# stasis_fuzz(NAME [SOURCES file...] DEPS target...): the fuzzer in NAME_fuzz.cc, whose corpus lies in
# tests/fuzz/corpus/NAME. SOURCES are files of this room that it needs, when it need not be all of them.
function(stasis_fuzz NAME)
  if(NOT STASIS_FUZZ)
    return()
  endif()
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_executable(${NAME}_fuzz EXCLUDE_FROM_ALL ${NAME}_fuzz.cc ${ARG_SOURCES})
  target_include_directories(${NAME}_fuzz PRIVATE ${CMAKE_SOURCE_DIR}/src)
  target_link_libraries(${NAME}_fuzz PRIVATE ${ARG_DEPS})
  target_link_options(${NAME}_fuzz PRIVATE -fsanitize=fuzzer)
  set_target_properties(${NAME}_fuzz PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  add_dependencies(fuzzers ${NAME}_fuzz)
endfunction()
