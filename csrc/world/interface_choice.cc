#include "world/interface_choice.h"

#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <functional>
#include <memory>

namespace mydist {
namespace {

using Filter = std::function<bool(const InterfaceAddress&)>;

std::string Numeric(const sockaddr* address, socklen_t length) {
  char text[NI_MAXHOST];
  const int failed = getnameinfo(address, length, text, sizeof(text), nullptr, 0, NI_NUMERICHOST);
  return failed != 0 ? "" : text;
}

bool IsUsable(const ifaddrs& entry) {
  if (entry.ifa_addr == nullptr || (entry.ifa_flags & IFF_UP) == 0) return false;
  if (entry.ifa_addr->sa_family == AF_INET) return true;
  if (entry.ifa_addr->sa_family != AF_INET6) return false;
  // A link-local address means nothing to another host without an interface number of its own.
  const auto* ipv6 = reinterpret_cast<const sockaddr_in6*>(entry.ifa_addr);
  return !IN6_IS_ADDR_LINKLOCAL(&ipv6->sin6_addr);
}

const InterfaceAddress* First(const std::vector<InterfaceAddress>& available, const Filter& fits) {
  for (const bool want_ipv6 : {false, true}) {
    for (const InterfaceAddress& candidate : available) {
      if (candidate.is_ipv6 == want_ipv6 && fits(candidate)) return &candidate;
    }
  }
  return nullptr;
}

std::string Listed(const std::vector<InterfaceAddress>& available) {
  std::string text;
  for (const InterfaceAddress& each : available) {
    text += (text.empty() ? "" : ", ") + each.name + " (" + each.address + ")";
  }
  return text.empty() ? "none" : text;
}

std::string Listed(const std::vector<std::string>& names) {
  std::string text;
  for (const std::string& name : names) text += (text.empty() ? "" : ",") + name;
  return text;
}

const InterfaceAddress* ByRoute(const std::vector<InterfaceAddress>& available,
                                const std::vector<std::string>& route_addresses) {
  for (const std::string& address : route_addresses) {
    const InterfaceAddress* chosen = First(available, [&](const InterfaceAddress& each) {
      return each.address == address && !each.is_loopback;
    });
    if (chosen != nullptr) return chosen;
  }
  return First(available, [](const InterfaceAddress& each) { return !each.is_loopback; });
}

// The address that datagrams to `target` leave from; empty when there is no route. Connecting a
// datagram socket only looks up the route.
std::string SourceAddress(const sockaddr* target, socklen_t target_bytes) {
  const int fd = socket(target->sa_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
  if (fd == -1) return "";
  std::string address;
  sockaddr_storage own{};
  socklen_t own_bytes = sizeof(own);
  if (connect(fd, target, target_bytes) == 0 &&
      getsockname(fd, reinterpret_cast<sockaddr*>(&own), &own_bytes) == 0) {
    address = Numeric(reinterpret_cast<const sockaddr*>(&own), own_bytes);
  }
  close(fd);
  return address;
}

void AppendRoute(const std::string& host, std::vector<std::string>& addresses) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_DGRAM;
  addrinfo* head = nullptr;
  // The port is that of the discard service; nothing is sent there.
  if (getaddrinfo(host.c_str(), "9", &hints, &head) != 0) return;
  const std::unique_ptr<addrinfo, decltype(&freeaddrinfo)> owner(head, &freeaddrinfo);
  for (const addrinfo* each = head; each != nullptr; each = each->ai_next) {
    const std::string address = SourceAddress(each->ai_addr, each->ai_addrlen);
    if (!address.empty()) addresses.push_back(address);
  }
}

}  // namespace

Result<std::vector<InterfaceAddress>> InterfaceAddresses() {
  ifaddrs* head = nullptr;
  if (getifaddrs(&head) != 0) {
    return Status::Internal(std::string("cannot list the network interfaces of this host: ") +
                            std::strerror(errno));
  }
  const std::unique_ptr<ifaddrs, decltype(&freeifaddrs)> owner(head, &freeifaddrs);
  std::vector<InterfaceAddress> found;
  for (const ifaddrs* entry = head; entry != nullptr; entry = entry->ifa_next) {
    if (!IsUsable(*entry)) continue;
    const bool is_ipv6 = entry->ifa_addr->sa_family == AF_INET6;
    const socklen_t length = is_ipv6 ? sizeof(sockaddr_in6) : sizeof(sockaddr_in);
    found.push_back({entry->ifa_name, Numeric(entry->ifa_addr, length), is_ipv6,
                     (entry->ifa_flags & IFF_LOOPBACK) != 0});
  }
  return found;
}

std::vector<std::string> RouteAddresses(const std::string& meeting_host) {
  std::vector<std::string> addresses;
  if (!meeting_host.empty()) AppendRoute(meeting_host, addresses);
  // Reserved for documentation: no host has it, and every default route covers it.
  AppendRoute("192.0.2.1", addresses);
  return addresses;
}

Result<InterfaceAddress> ChooseInterface(const std::vector<InterfaceAddress>& available,
                                         const InterfaceWish& wish) {
  for (const std::string& name : wish.names) {
    const InterfaceAddress* chosen =
        First(available, [&](const InterfaceAddress& each) { return each.name == name; });
    if (chosen != nullptr) return *chosen;
  }
  if (!wish.names.empty()) {
    return Status::InvalidArgument(
        "MYDIST_NETWORK_INTERFACES is '" + Listed(wish.names) +
        "', but this host has no such interface with an address; it has: " + Listed(available) +
        ". Name one of these.");
  }
  const InterfaceAddress* chosen =
      wish.single_host
          ? First(available, [](const InterfaceAddress& each) { return each.is_loopback; })
          : ByRoute(available, wish.route_addresses);
  if (chosen != nullptr) return *chosen;
  return Status::InvalidArgument(
      std::string("this host has no usable network interface: the ranks run on ") +
      (wish.single_host ? "one host, so a loopback interface is needed"
                        : "several hosts, so an interface other than loopback is needed") +
      ", and this host has: " + Listed(available) +
      ". Bring an interface up, or name one in MYDIST_NETWORK_INTERFACES.");
}

Result<InterfaceAddress> OwnAddress(const std::vector<std::string>& names, bool single_host,
                                    const std::string& meeting_host) {
  MYDIST_ASSIGN_OR_RETURN(const std::vector<InterfaceAddress> available, InterfaceAddresses());
  InterfaceWish wish{names, single_host, {}};
  if (!single_host) wish.route_addresses = RouteAddresses(meeting_host);
  return ChooseInterface(available, wish);
}

std::string InterfacesText(const InterfaceAddress& chosen) {
  const auto available = InterfaceAddresses();
  return Listed({chosen}) + " of " + (available.ok() ? Listed(*available) : "unknown ones");
}

}  // namespace mydist
