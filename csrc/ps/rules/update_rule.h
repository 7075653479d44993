// UpdateRule: what a parameter server does with a gradient that a worker has pushed.
// Owned by a piece of a table, which calls it with its lock held: a rule needs none. All arithmetic
// is in float32, element by element and in one order, so the same pushes give the same bits.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "base/export.h"
#include "base/status.h"

namespace mydist::ps {

// What a rule may want to know of the push that it applies.
struct PushInfo {
  int worker = 0;       // 0 to workers - 1; 0 where a mean over all of them is applied.
  int64_t updates = 0;  // Applied to the piece before this one, to whatever rows.
  // The same when the worker last pulled parameters of the piece; its delay is the rest. Of rows it
  // may have pulled others then.
  int64_t updates_read = 0;
  bool is_mean = false;  // Over the workers of a Sync table, all of which have read the same.
};

class MYDIST_EXPORT UpdateRule {
 public:
  virtual ~UpdateRule() = default;

  // False: what is pushed is refused, and Apply is never called.
  virtual bool TakesGradients() const { return true; }
  // How many floats of state `count` parameters take: as many for each of them.
  virtual int64_t StateFloats(int64_t count) const = 0;
  // The state before the first push, of parameters that have just got their start values. It is all
  // zeros before.
  virtual void Begin([[maybe_unused]] std::span<const float> parameters,
                     [[maybe_unused]] std::span<float> state) const {}
  // `gradient`: what was pushed, as long as the parameters. `state`: StateFloats(count) of them.
  virtual void Apply(std::span<float> parameters, std::span<const float> gradient,
                     std::span<float> state, const PushInfo& push) const = 0;
  // The worker is given the parameters as they are now.
  virtual void OnPull([[maybe_unused]] std::span<const float> parameters,
                      [[maybe_unused]] std::span<float> state, [[maybe_unused]] int worker) const {}
};

// The name of the rule of a table whose values are pulled only.
inline constexpr const char* kNoRule = "none";

// A rule by its name and options, as it travels and as errors show it.
struct RuleSpec {
  std::string name;  // Such as "sgd".
  std::vector<std::pair<std::string, double>> options;

  bool operator==(const RuleSpec&) const = default;
};

// "sgd(lr=0.1, momentum=0.9)", or "no rule".
MYDIST_EXPORT std::string RuleText(const RuleSpec& spec);

// As bytes of a message, and back; what is wrong fails the reader.
MYDIST_EXPORT void EncodeRuleSpec(const RuleSpec& spec, ByteWriter& writer);
MYDIST_EXPORT RuleSpec DecodeRuleSpec(ByteReader& reader);

// One option of a rule. A switch has 0 or 1 as its value.
struct RuleOption {
  std::string name;
  double default_value = 0;
  bool is_required = false;
  std::function<bool(double)> is_allowed;
  std::string allowed;  // As in "a number of at least 0".
};

// All values of a rule's options, by name; defaults where the spec says nothing.
class MYDIST_EXPORT RuleOptions {
 public:
  explicit RuleOptions(std::vector<std::pair<std::string, double>> values)
      : values_(std::move(values)) {}
  // Of an option that the row has.
  double At(std::string_view name) const;
  float Float(std::string_view name) const { return static_cast<float>(At(name)); }
  bool Is(std::string_view name) const { return At(name) != 0; }

 private:
  std::vector<std::pair<std::string, double>> values_;
};

struct RuleRow {
  std::string name;
  std::vector<RuleOption> options;
  // `workers` of the table. The options are allowed ones.
  std::function<std::unique_ptr<UpdateRule>(const RuleOptions& options, int workers)> make;
  // Names a conflict of options that are allowed one by one: "nesterov needs a momentum above 0".
  // Empty: there is none, as in a row without this function.
  std::function<std::string(const RuleOptions& options)> conflict = nullptr;
};

// All rules, in alphabetical order: the rows of rules/rows.h.
MYDIST_EXPORT const std::vector<RuleRow>& RuleRows();

// kInvalidArgument naming rule, option and what is expected, when there is no such rule or option,
// a required one is missing or a value is not allowed.
MYDIST_EXPORT Result<std::unique_ptr<UpdateRule>> MakeRule(const RuleSpec& spec, int workers);

}  // namespace mydist::ps
