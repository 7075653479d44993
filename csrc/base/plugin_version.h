// MYDIST_PLUGIN_VERSION, once in each library that the core opens: says which version of mydist it
// was compiled for. PluginFunction (transport/registry.h) compares it with the core's own.
#pragma once

#include "base/export.h"
#include "mydist/build_config.h"

#define MYDIST_PLUGIN_VERSION                                    \
  extern "C" MYDIST_EXPORT const char* mydist_plugin_version() { \
    return ::mydist::build_config::kVersion;                     \
  }
