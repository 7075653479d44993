// Arena::Handshake: how the ranks of each host come to one arena, or learn why there is none, in
// rounds of an exchange in which all ranks of the job take part. Lives for one Arena::Establish, in
// its caller's thread. On every rank the same rounds are made, whatever a rank finds.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "memory/shm/arena.h"
#include "memory/shm/fleeting_name.h"

namespace mydist::shm {

class Arena::Handshake {
 public:
  // Keeps references to both.
  Handshake(const ArenaOptions& options, const ArenaExchange& exchange);
  // As Arena::Establish.
  Result<Establishment> Run();

 private:
  using Blob = std::vector<uint8_t>;

  bool IsMaker() const { return options_.index == 0; }
  // The maker's: a file without a name, and the name that it would be given.
  void Begin();
  void AskForName();
  // Two rounds: the maker's offer, and what everybody says to it.
  Result<std::vector<Blob>> Meet();
  // The same once more, with a name meanwhile on hosts where `answers` ask for one.
  Result<std::vector<Blob>> MeetByName(const std::vector<Blob>& answers);
  // The maker's: the file appears under the name.
  void UseName();
  Result<std::unique_ptr<Arena>> Make(std::shared_ptr<ArenaFile> file) const;
  Result<std::unique_ptr<Arena>> MakeByName() const;
  // A peer's: what it makes of the offers.
  void Accept(const std::vector<Blob>& offers);
  Result<std::unique_ptr<Arena>> Attach(const std::string& address, const Nonce& cookie) const;
  Blob Offer() const;
  Blob Answer() const;
  // The first refusal among what the ranks of the host said; none if nobody refuses.
  std::string FirstRefusal(const std::vector<Blob>& answers) const;

  const ArenaOptions& options_;
  const ArenaExchange& exchange_;
  const ArenaLayout layout_;
  Result<std::unique_ptr<Arena>> own_;
  // Known to all ranks of the host before any file has it; empty where the maker has told none.
  std::string name_;
  // From before this rank asks for a name, or there may be one, until all have reported.
  std::optional<FleetingName> removal_;
  bool is_by_name_ = false;  // The offer at hand is a name.
  bool wants_name_ = false;  // Whether a name might help.
};

}  // namespace mydist::shm
