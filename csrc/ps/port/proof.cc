#include "ps/port/proof.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <sys/random.h>

#include <string_view>
#include <vector>

namespace mydist::ps {

Result<Nonce> FreshNonce() {
  Nonce nonce;
  if (getrandom(nonce.data(), nonce.size(), 0) != static_cast<ssize_t>(nonce.size())) {
    return Status::Internal("the system has no random bytes for a connection");
  }
  return nonce;
}

Result<Proof> Prove(const JobKey& key, Side side, const Nonce& worker, const Nonce& server) {
  // Other labels than those of the rendezvous, which has the same key.
  const std::string_view label = side == Side::kWorker ? "ps worker 1" : "ps server 1";
  std::vector<uint8_t> text(label.begin(), label.end());
  text.insert(text.end(), worker.begin(), worker.end());
  text.insert(text.end(), server.begin(), server.end());
  Proof proof;
  unsigned int bytes = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), text.data(), text.size(),
           proof.data(), &bytes) == nullptr ||
      bytes != proof.size()) {
    return Status::Internal("libcrypto refuses HMAC-SHA256, which connections need");
  }
  return proof;
}

bool AreEqual(const Proof& one, const Proof& other) {
  return CRYPTO_memcmp(one.data(), other.data(), one.size()) == 0;
}

}  // namespace mydist::ps
