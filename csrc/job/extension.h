// Extensions: libraries of others that add transports, algorithms and settings, named in
// MYDIST_PLUGINS. One is written with MYDIST_EXTENSION and compiled against these headers; see
// docs/extending.md.
#pragma once

#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"
#include "config/config.h"

namespace mydist {

// Raised whenever a class that an extension implements, or a row that it adds, changes.
inline constexpr int kExtensionVersion = 3;

inline constexpr const char* kExtensionVersionSymbol = "mydist_extension_version";
inline constexpr const char* kExtensionSymbol = "mydist_extension";

// Loads them, each file once per process; they stay loaded. kInvalidArgument naming the file when
// it cannot be opened or is no extension, kVersionMismatch for one of another version, else what
// its function gives. Any thread.
MYDIST_EXPORT Status LoadExtensions(const std::vector<std::string>& files);

// The environment's settings, once its extensions are loaded.
MYDIST_EXPORT Result<Config> ConfigWithExtensions();

}  // namespace mydist

// Defines what a library exports: `function`, a Status(), adds its rows when it is loaded.
#define MYDIST_EXTENSION(function)                                                                \
  extern "C" MYDIST_EXPORT int mydist_extension_version() { return ::mydist::kExtensionVersion; } \
  extern "C" MYDIST_EXPORT void mydist_extension(::mydist::Status* status) { *status = function(); }
