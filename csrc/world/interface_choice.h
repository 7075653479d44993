// Interface choice: from which local address a rank talks to other hosts. Pure but for
// InterfaceAddresses and RouteAddresses, which ask the operating system.
#pragma once

#include <string>
#include <vector>

#include "base/export.h"
#include "base/status.h"

namespace mydist {

struct InterfaceAddress {
  std::string name;     // "eth0"
  std::string address;  // Numeric, "10.0.0.7" or "fd00::7".
  bool is_ipv6 = false;
  bool is_loopback = false;
};

// Addresses of the interfaces that are up, without IPv6 link-local ones. kInternal when the system
// does not tell.
MYDIST_EXPORT Result<std::vector<InterfaceAddress>> InterfaceAddresses();

// The addresses this host sends from: towards `meeting_host` (a name, which is looked up, or a
// numeric address; empty = unknown), then by its default route. Best first; those that do not exist
// are left out. Sends nothing but the look-up.
MYDIST_EXPORT std::vector<std::string> RouteAddresses(const std::string& meeting_host);

struct InterfaceWish {
  std::vector<std::string> names;  // From MYDIST_NETWORK_INTERFACES; the first that exists wins.
  bool single_host = false;        // All ranks run on this host.
  std::vector<std::string> route_addresses;  // From RouteAddresses.
};

// The named interface; else loopback on a single host, so that no other host can connect; else
// the first address of a route that is not loopback, else the first one that is not loopback, IPv4
// before IPv6.
// kInvalidArgument listing what exists when nothing fits.
MYDIST_EXPORT Result<InterfaceAddress> ChooseInterface(
    const std::vector<InterfaceAddress>& available, const InterfaceWish& wish);
// The same for this host as it is now; `meeting_host` as for RouteAddresses.
MYDIST_EXPORT Result<InterfaceAddress> OwnAddress(const std::vector<std::string>& names,
                                                  bool single_host,
                                                  const std::string& meeting_host);
// What was chosen, and what there is: "data0 (10.0.0.7) of lo (127.0.0.1), data0 (10.0.0.7)".
MYDIST_EXPORT std::string InterfacesText(const InterfaceAddress& chosen);

}  // namespace mydist
