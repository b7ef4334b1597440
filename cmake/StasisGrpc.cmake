# stasis::grpc: gRPC, linked statically, so that programs need no libraries of the machine. Debian's
# CMake package names only the shared libraries; pkg-config lists the static ones.

find_package(PkgConfig REQUIRED)
find_program(STASIS_GRPC_PLUGIN grpc_cpp_plugin REQUIRED)
# One call, because each takes more than a second. pkg_check_modules() makes twenty.
execute_process(COMMAND ${PKG_CONFIG_EXECUTABLE} --static --libs-only-l grpc++
  OUTPUT_VARIABLE names OUTPUT_STRIP_TRAILING_WHITESPACE COMMAND_ERROR_IS_FATAL ANY)
string(REGEX REPLACE "(^| +)-l" ";" names "${names}")
find_library(STASIS_GRPC_REFLECTION libgrpc++_reflection.a REQUIRED)
set(libraries ${STASIS_GRPC_REFLECTION})
set(rest)
foreach(name ${names})
  find_library(STASIS_STATIC_${name} lib${name}.a)
  if(STASIS_STATIC_${name} AND NOT name MATCHES "^(dl|rt|m|pthread|c)$")
    list(APPEND libraries ${STASIS_STATIC_${name}})
  else()
    list(APPEND rest ${name})
  endif()
endforeach()
add_library(stasis_grpc INTERFACE)
add_library(stasis::grpc ALIAS stasis_grpc)
# These libraries have circular references.
target_link_libraries(stasis_grpc INTERFACE -Wl,--start-group ${libraries} -Wl,--end-group
  protobuf::libprotobuf ${rest} Threads::Threads)
add_library(stasis_grpc_threads STATIC ${CMAKE_SOURCE_DIR}/cmake/grpc_threads.cc)
target_link_libraries(stasis_grpc_threads PUBLIC stasis_base)
target_link_libraries(stasis_grpc INTERFACE stasis_grpc_threads)
target_link_options(stasis_grpc INTERFACE -Wl,--wrap=pthread_create)

# stasis_grpc_proto(FILE OUT_VAR): generates C++ from a .proto with services, including its
# descriptor for reflection.
function(stasis_grpc_proto FILE OUT)
  set(proto_root ${CMAKE_SOURCE_DIR}/proto)
  file(RELATIVE_PATH rel ${proto_root} ${FILE})
  string(REGEX REPLACE "\\.proto$" "" stem ${rel})
  set(dir ${CMAKE_BINARY_DIR}/proto)
  set(out ${dir}/${stem}.pb.cc ${dir}/${stem}.pb.h)
  file(MAKE_DIRECTORY ${dir})
  add_custom_command(
    OUTPUT ${out}
    COMMAND protobuf::protoc --cpp_out=${dir} -I ${proto_root} ${FILE}
    DEPENDS ${FILE} VERBATIM)
  set(grpc_out ${dir}/${stem}.grpc.pb.cc ${dir}/${stem}.grpc.pb.h)
  add_custom_command(
    OUTPUT ${grpc_out}
    COMMAND protobuf::protoc --grpc_out=${dir} --plugin=protoc-gen-grpc=${STASIS_GRPC_PLUGIN} -I ${proto_root} ${FILE}
    DEPENDS ${FILE} VERBATIM)
  set_source_files_properties(${out} ${grpc_out} PROPERTIES COMPILE_OPTIONS "-w;$<$<CONFIG:Release>:-O1>")
  stasis_generated(${out} ${grpc_out})
  set(${OUT} ${out} PARENT_SCOPE)
  set(${OUT}_GRPC ${grpc_out} PARENT_SCOPE)
endfunction()
