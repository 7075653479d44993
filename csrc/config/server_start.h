// ServerStart: what mydistrun tells a server program that it starts; see decision 0028.
#pragma once

#include <array>
#include <cstdint>
#include <string>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

struct MYDIST_EXPORT ServerStart {
  int number = 0;                  // MYDIST_SERVER
  std::string bind = "127.0.0.1";  // MYDIST_SERVER_BIND: the address that it listens on.
  std::array<uint8_t, 32> key{};   // Read from MYDIST_JOB_KEY_FD.
  int address_descriptor = -1;     // MYDIST_SERVER_ADDRESS_FD: takes the line with its address.

  // kInvalidArgument naming the variable that is missing or malformed.
  static Result<ServerStart> FromEnv();
};

}  // namespace mydist
