// Names of calls, and the cores that ranks tell of.
#include <string>

#include "base/call_name.h"
#include "base/usable_cores.h"
#include "controller/messages/response.h"
#include "target.h"

namespace mydist::fuzz {
namespace {

// A tensor's name, then a group's.
void CallName(std::span<const uint8_t> bytes) {
  Input input(bytes);
  const std::string name = input.Line();
  const std::string group = input.Line();
  const std::string_view digits = CallDigits(name);
  if (!digits.empty()) {
    FUZZ_EXPECT(digits.size() <= 18);
    FUZZ_EXPECT(digits.data() >= name.data());
    FUZZ_EXPECT(digits.data() + digits.size() <= name.data() + name.size());
    FUZZ_EXPECT(std::to_string(std::stoull(std::string(digits))) == digits);
  }
  FUZZ_EXPECT((WithoutCallDigits(name) == name) == digits.empty());
  FUZZ_EXPECT(EditDistance(name, name) == 0);

  Agreement agreement;
  agreement.request.name = name;
  agreement.request.group = group;
  const auto number = CallNumber(agreement.request);
  if (number) FUZZ_EXPECT(WithCallNumber(agreement, *number).request == agreement.request);
  const Agreement other = WithCallNumber(agreement, 123);
  FUZZ_EXPECT(CallNumber(other.request) == (number ? std::optional<uint64_t>(123) : number));
}

std::vector<Bytes> CallNameSeeds() {
  const auto two = [](const std::string& name, const std::string& group) {
    return ToBytes(name + '\0' + group);
  };
  return {two("allreduce.noname.7", ""), two("grouped_allreduce.noname.7.2", "group.noname.7"),
          two("layer1.weight", "g"), two("a.noname.000000000000000001", "")};
}

void Cores(std::span<const uint8_t> bytes) {
  const auto cores = UsableCores::FromText(ToText(bytes));
  if (!cores) return;
  const auto again = UsableCores::FromText(cores->ToText());
  FUZZ_EXPECT(again.has_value());
  FUZZ_EXPECT(*again == *cores);
  HaveACoreEach(std::vector<UsableCores>{*cores, *again, *cores});
}

std::vector<Bytes> CoresSeeds() {
  return {ToBytes("0-3,8"), ToBytes("0-3,8 1.5 of 27:4031 6 of 27:2"), ToBytes("0"),
          ToBytes(" 0.1 of /a")};
}

}  // namespace

std::vector<Target> BaseTargets() {
  return {{"call_name", CallName, CallNameSeeds}, {"usable_cores", Cores, CoresSeeds}};
}

}  // namespace mydist::fuzz
