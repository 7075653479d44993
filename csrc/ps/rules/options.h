// Options of rules with their ranges; part of the files of rules only.
#pragma once

#include <string>
#include <utility>

#include "ps/rules/update_rule.h"

namespace mydist::ps {

inline RuleOption AtLeastZero(std::string name, double default_value = 0) {
  return {.name = std::move(name),
          .default_value = default_value,
          .is_allowed = [](double value) { return value >= 0; },
          .allowed = "a number of at least 0"};
}

inline RuleOption AboveZero(std::string name, double default_value = 0) {
  return {.name = std::move(name),
          .default_value = default_value,
          .is_allowed = [](double value) { return value > 0; },
          .allowed = "a number above 0"};
}

inline RuleOption ZeroToOne(std::string name, double default_value = 0) {
  return {.name = std::move(name),
          .default_value = default_value,
          .is_allowed = [](double value) { return value >= 0 && value <= 1; },
          .allowed = "a number from 0 to 1"};
}

// The part of a fading mean that stays.
inline RuleOption BelowOne(std::string name, double default_value) {
  return {.name = std::move(name),
          .default_value = default_value,
          .is_allowed = [](double value) { return value >= 0 && value < 1; },
          .allowed = "a number of at least 0 and below 1"};
}

inline RuleOption Switch(std::string name) {
  return {.name = std::move(name),
          .is_allowed = [](double value) { return value == 0 || value == 1; },
          .allowed = "0 or 1"};
}

inline RuleOption Required(RuleOption option) {
  option.is_required = true;
  return option;
}

}  // namespace mydist::ps
