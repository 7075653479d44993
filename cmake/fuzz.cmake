# The targets of tests/fuzz/cpp: with MYDIST_SANITIZE=fuzz the program `fuzz`, which scripts/fuzz.sh
# builds and runs. cmake/cpp_tests.cmake makes test_fuzz of them, which takes the kept corpus.
mydist_sources(MYDIST_FUZZ_SOURCES "target*.cc" tests/fuzz/cpp)
mydist_sources(_files "*_targets.cc" tests/fuzz/cpp)
list(APPEND MYDIST_FUZZ_SOURCES ${_files}
  "${PROJECT_SOURCE_DIR}/tests/cpp/timeline/json_value.cc"
  # Of the plugin what needs no Gloo, and of the parameter server what needs no Asio.
  "${PROJECT_SOURCE_DIR}/csrc/transport/gloo/wire.cc"
  "${PROJECT_SOURCE_DIR}/csrc/ps/frame.cc"
  "${PROJECT_SOURCE_DIR}/csrc/ps/table_spec.cc"
  "${PROJECT_SOURCE_DIR}/csrc/ps/port/greeting.cc")
mydist_sources(_files "*.cc" csrc/ps/rules)
list(APPEND MYDIST_FUZZ_SOURCES ${_files})
if(MYDIST_SANITIZE STREQUAL "fuzz" AND MYDIST_CORE_BUILT)
  add_executable(fuzz ${MYDIST_FUZZ_SOURCES} "${PROJECT_SOURCE_DIR}/tests/fuzz/cpp/fuzz_main.cc")
  mydist_compile_options(fuzz)
  target_include_directories(fuzz PRIVATE "${PROJECT_SOURCE_DIR}/tests/cpp"
                                          "${PROJECT_SOURCE_DIR}/tests/fuzz/cpp")
  target_link_libraries(fuzz PRIVATE mydist_core_objects)
  target_link_options(fuzz PRIVATE -fsanitize=fuzzer)
endif()
