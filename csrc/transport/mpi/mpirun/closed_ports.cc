// Closes the ports of an mpirun, for a job of one host. Open MPI 4's mpirun listens on all
// interfaces for the mpirun processes of other hosts, of which this job has none, and no setting is
// against it. It reads what comes first without a time-out: a few bytes of a stranger stop the job.
// `mydistrun --mpi` preloads this library into mpirun, and only there: what mpirun starts does not
// inherit it. The port for the ranks of the host is on the loopback anyway and stays as it is.

#include <dlfcn.h>
#include <linux/filter.h>
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

// Nothing that is sent to it arrives, so it takes no connection. A socket that did not listen would
// keep mpirun awake.
void DropAll(int socket) {
  sock_filter nothing = BPF_STMT(BPF_RET | BPF_K, 0);
  const sock_fprog program{1, &nothing};
  ::setsockopt(socket, SOL_SOCKET, SO_ATTACH_FILTER, &program, sizeof program);
}

using Bind = int (*)(int, const sockaddr*, socklen_t);

}  // namespace

// Takes the place of the system's function: an address of all interfaces becomes the loopback's, at
// a port that takes no connection.
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
    if (in.sin_addr.s_addr == htonl(INADDR_ANY)) {
      in.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
      DropAll(socket);
    }
  } else if (changed.ss_family == AF_INET6 && length >= sizeof(sockaddr_in6)) {
    auto& in = reinterpret_cast<sockaddr_in6&>(changed);
    if (IN6_IS_ADDR_UNSPECIFIED(&in.sin6_addr)) {
      in.sin6_addr = in6addr_loopback;
      DropAll(socket);
    }
  }
  return system_bind(socket, reinterpret_cast<const sockaddr*>(&changed), length);
}
