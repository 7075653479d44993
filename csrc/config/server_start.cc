#include "config/server_start.h"

#include <unistd.h>

#include <charconv>
#include <cstdlib>
#include <cstring>

namespace mydist {
namespace {

Result<int> NumberOf(const char* variable) {
  const char* const text = std::getenv(variable);
  if (text == nullptr) {
    return Status::InvalidArgument(std::string(variable) +
                                   " is not set; mydistrun --servers starts this program");
  }
  int number = 0;
  const char* const end = text + std::strlen(text);
  const auto [stop, error] = std::from_chars(text, end, number);
  if (error != std::errc() || stop != end || number < 0) {
    return Status::InvalidArgument(std::string(variable) + "='" + text +
                                   "' is not valid: expected an integer of at least 0");
  }
  return number;
}

}  // namespace

Result<ServerStart> ServerStart::FromEnv() {
  ServerStart start;
  MYDIST_ASSIGN_OR_RETURN(start.number, NumberOf("MYDIST_SERVER"));
  MYDIST_ASSIGN_OR_RETURN(start.address_descriptor, NumberOf("MYDIST_SERVER_ADDRESS_FD"));
  MYDIST_ASSIGN_OR_RETURN(const int key, NumberOf("MYDIST_JOB_KEY_FD"));
  if (const char* const bind = std::getenv("MYDIST_SERVER_BIND")) start.bind = bind;
  const auto bytes = static_cast<ssize_t>(start.key.size());
  if (pread(key, start.key.data(), start.key.size(), 0) != bytes) {
    return Status::InvalidArgument("MYDIST_JOB_KEY_FD=" + std::to_string(key) +
                                   ": not a descriptor with the job's key");
  }
  return start;
}

}  // namespace mydist
