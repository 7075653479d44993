#include "gpu/kernels/cuda_status.h"

#include <string>

namespace mydist::cuda {
namespace {

// Of headers newer than the oldest ones that this is compiled with.
constexpr int kContained = 226;
constexpr int kTensorMemoryLeak = 721;
constexpr int kExternalDevice = 911;

// After such an error every call of this process on this GPU fails.
bool IsSticky(cudaError_t error) {
  switch (static_cast<int>(error)) {
    case cudaErrorIllegalAddress:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorIllegalInstruction:
    case cudaErrorHardwareStackError:
    case cudaErrorLaunchFailure:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorMpsClientTerminated:
    case cudaErrorContextIsDestroyed:
    case kContained:
    case kTensorMemoryLeak:
    case kExternalDevice:
      return true;
    default:
      return false;
  }
}

std::string Advice(cudaError_t error) {
  if (IsSticky(error)) {
    return ". This process can no longer use that GPU. CUDA reports errors late: an earlier kernel "
           "or copy may be the cause; CUDA_LAUNCH_BLOCKING=1 or compute-sanitizer finds it";
  }
  if (error == cudaErrorStreamCaptureUnsupported || error == cudaErrorStreamCaptureInvalidated ||
      error == cudaErrorCapturedEvent) {
    return ". A CUDA graph is being captured, and it cannot contain this call";
  }
  if (error == cudaErrorInitializationError) {
    return ". CUDA does not work in a process that was forked after its parent used CUDA: use "
           "multiprocessing's 'spawn'";
  }
  return "";
}

}  // namespace

Status CudaStatus(cudaError_t error, const char* call, int device) {
  if (error == cudaSuccess) return Status::Ok();
  (void)cudaGetLastError();
  const std::string where = device < 0 ? "" : " on GPU " + std::to_string(device);
  return Status::Internal(std::string(call) + where + " failed: " + cudaGetErrorString(error) +
                          " (" + cudaGetErrorName(error) + ")" + Advice(error));
}

}  // namespace mydist::cuda
