// Whether a sanitizer watches this program: some of what the system allows, sanitizers do not.
#pragma once

namespace mydist {

#if defined(__has_feature)
#if __has_feature(thread_sanitizer) || __has_feature(address_sanitizer)
#define MYDIST_IS_SANITIZED 1
#endif
#endif
#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
#define MYDIST_IS_SANITIZED 1
#endif

#ifdef MYDIST_IS_SANITIZED
inline constexpr bool kIsSanitized = true;
#else
inline constexpr bool kIsSanitized = false;
#endif

}  // namespace mydist
