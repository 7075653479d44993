// Compiled for its precompiled headers, which the test programs share (cmake/cpp_tests.cmake).
