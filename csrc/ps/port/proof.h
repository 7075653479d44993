// Proofs that a side of a new connection knows the job's key, see greeting.h.
#pragma once

#include "base/status.h"
#include "ps/port/greeting.h"

namespace mydist::ps {

enum class Side { kWorker, kServer };

// kInternal when the system has no random bytes.
Result<Nonce> FreshNonce();
// kInternal when libcrypto refuses, as under a policy without HMAC-SHA256.
Result<Proof> Prove(const JobKey& key, Side side, const Nonce& worker, const Nonce& server);
// Takes as long for each wrong proof.
bool AreEqual(const Proof& one, const Proof& other);

}  // namespace mydist::ps
