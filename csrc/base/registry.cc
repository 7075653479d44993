#include "base/registry.h"

namespace mydist {

bool IsValueName(std::string_view text) {
  constexpr size_t kMaxBytes = 64;
  const auto is_part = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= '0' && c <= '9') || c == '_' || c == '-';
  };
  return text.size() <= kMaxBytes && std::all_of(text.begin(), text.end(), is_part);
}

Status CheckRowName(const std::string& what, const std::string& name) {
  if (IsValueName(name)) return Status::Ok();
  return Status::InvalidArgument(
      "the name of " + what + " '" + name +
      "' is not valid; expected up to 64 lowercase letters, digits, _ and -");
}

std::string ListOfNames(const std::vector<std::string>& names) {
  std::string list;
  for (size_t i = 0; i < names.size(); ++i) {
    if (i > 0) list += i + 1 == names.size() ? " or " : ", ";
    list += names[i];
  }
  return list;
}

}  // namespace mydist
