// PluginFunction: an extra C function that a plugin exports for tests.
#pragma once

#include <dlfcn.h>

#include "transport/factory.h"

namespace mydist {

// Null when the plugin has no such function. The plugin stays open.
template <typename Function>
Function PluginFunction(BackendPlugin* plugin, const char* name) {
  // The object's vtable lies in the plugin's library.
  Dl_info info{};
  if (dladdr(*reinterpret_cast<void**>(plugin), &info) == 0) return nullptr;
  void* library = dlopen(info.dli_fname, RTLD_NOW | RTLD_NOLOAD);
  if (library == nullptr) return nullptr;
  auto function = reinterpret_cast<Function>(dlsym(library, name));
  dlclose(library);
  return function;
}

}  // namespace mydist
