#include "ps/rules/update_rule.h"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <limits>

#include "base/registry.h"

namespace mydist::ps {
namespace {

constexpr size_t kMaxName = 64;
constexpr size_t kMaxOptions = 32;

// As Python writes it, for these values.
std::string NumberText(double value) {
  char text[32];
  std::snprintf(text, sizeof(text), "%g", value);
  return text;
}

const RuleRow* FindRow(const std::string& name) {
  const std::vector<RuleRow>& rows = RuleRows();
  const auto found =
      std::find_if(rows.begin(), rows.end(), [&](const RuleRow& row) { return row.name == name; });
  return found == rows.end() ? nullptr : &*found;
}

Status UnknownRule(const RuleSpec& spec) {
  std::vector<std::string> names;
  for (const RuleRow& row : RuleRows()) names.push_back(row.name);
  return Status::InvalidArgument("there is no rule '" + spec.name + "': expected " +
                                 ListOfNames(names));
}

}  // namespace

std::string RuleText(const RuleSpec& spec) {
  if (spec.name == kNoRule) return "no rule";
  std::string options;
  for (const auto& [name, value] : spec.options) {
    options += (options.empty() ? "" : ", ") + name + "=" + NumberText(value);
  }
  return spec.name + "(" + options + ")";
}

double RuleOptions::At(std::string_view name) const {
  const auto found = std::find_if(values_.begin(), values_.end(),
                                  [&](const auto& value) { return value.first == name; });
  MYDIST_CHECK(found != values_.end());
  return found->second;
}

Result<std::unique_ptr<UpdateRule>> MakeRule(const RuleSpec& spec, int workers) {
  const RuleRow* const row = FindRow(spec.name);
  if (row == nullptr) return UnknownRule(spec);
  std::vector<std::pair<std::string, double>> given = spec.options;
  std::vector<std::pair<std::string, double>> values;
  for (const RuleOption& option : row->options) {
    const auto found = std::find_if(given.begin(), given.end(),
                                    [&](const auto& one) { return one.first == option.name; });
    if (found == given.end() && option.is_required) {
      return Status::InvalidArgument("rule '" + spec.name + "' needs " + option.name + ", " +
                                     option.allowed);
    }
    const double value = found == given.end() ? option.default_value : found->second;
    // Rules compute with float32, where larger numbers are infinite.
    const bool is_number = std::abs(value) <= std::numeric_limits<float>::max();
    if (!is_number || !option.is_allowed(value)) {
      return Status::InvalidArgument("rule '" + spec.name + "': " + option.name + " is " +
                                     NumberText(value) + ", expected " + option.allowed);
    }
    values.emplace_back(option.name, value);
    if (found != given.end()) given.erase(found);
  }
  if (!given.empty()) {
    std::vector<std::string> names;
    for (const RuleOption& option : row->options) names.push_back(option.name);
    return Status::InvalidArgument("rule '" + spec.name + "' has no option '" + given[0].first +
                                   "'" + (names.empty() ? "" : ": expected " + ListOfNames(names)));
  }
  const RuleOptions options(std::move(values));
  const std::string conflict = row->conflict == nullptr ? "" : row->conflict(options);
  if (!conflict.empty()) return Status::InvalidArgument("rule '" + spec.name + "': " + conflict);
  return row->make(options, workers);
}

void EncodeRuleSpec(const RuleSpec& spec, ByteWriter& writer) {
  writer.String(spec.name, kMaxName);
  writer.Count(spec.options.size());
  for (const auto& [name, value] : spec.options) {
    writer.String(name, kMaxName);
    writer.F64(value);
  }
}

RuleSpec DecodeRuleSpec(ByteReader& reader) {
  RuleSpec spec{reader.String(kMaxName), {}};
  const size_t count = reader.Count(4 + 8);
  if (count > kMaxOptions) reader.Fail("a rule has too many options");
  for (size_t i = 0; i < count && reader.ok(); ++i) {
    std::string name = reader.String(kMaxName);
    spec.options.emplace_back(std::move(name), reader.F64());
  }
  return spec;
}

}  // namespace mydist::ps
