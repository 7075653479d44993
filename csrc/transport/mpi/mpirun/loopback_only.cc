// Keeps the ports of an mpirun on the loopback, for a job of one host. Open MPI 4's mpirun listens
// on all interfaces and has no setting against it. `mydistrun --mpi` preloads this library into
// mpirun, and only there: what mpirun starts does not inherit it.

#include <dlfcn.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>

namespace {

constexpr const char* kPreload = "LD_PRELOAD";

// mydistrun has put this library at the end of the list.
[[gnu::constructor]] void LeaveTheList() {
  char* const list = std::getenv(kPreload);
  if (list == nullptr) return;
  char* const last = std::strrchr(list, ':');
  if (last == nullptr) {
    ::unsetenv(kPreload);
  } else {
    *last = '\0';
  }
}

using Bind = int (*)(int, const sockaddr*, socklen_t);

}  // namespace

// Takes the place of the system's function: an address of all interfaces becomes the loopback's.
extern "C" [[gnu::visibility("default")]] int bind(int socket, const sockaddr* address,
                                                   socklen_t length) noexcept {
  const Bind system_bind = reinterpret_cast<Bind>(::dlsym(RTLD_NEXT, "bind"));
  if (system_bind == nullptr) {
    errno = ENOSYS;
    return -1;
  }
  sockaddr_storage changed{};
  if (address == nullptr || length > sizeof changed) return system_bind(socket, address, length);
  std::memcpy(&changed, address, length);
  if (changed.ss_family == AF_INET && length >= sizeof(sockaddr_in)) {
    auto& in = reinterpret_cast<sockaddr_in&>(changed);
    if (in.sin_addr.s_addr == htonl(INADDR_ANY)) in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  } else if (changed.ss_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    auto& in = reinterpret_cast<sockaddr_in6&>(changed);
    if (IN6_IS_ADDR_UNSPECIFIED(&in.sin6_addr)) in.sin6_addr = in6addr_loopback;
  }
  return system_bind(socket, reinterpret_cast<const sockaddr*>(&changed), length);
}
