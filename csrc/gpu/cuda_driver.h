// CudaDriver: the functions of the driver's own library that the runtime has no equal for, and
// what GPUs there are. The library is part of the driver and is opened when it is first needed.
#pragma once

#include <cuda.h>

#include "base/result.h"

namespace mydist::cuda {

struct CudaDriver {
  CUresult (*GetErrorName)(CUresult, const char**) = nullptr;
  CUresult (*DeviceGet)(CUdevice*, int index) = nullptr;
  CUresult (*PrimaryContextRetain)(CUcontext*, CUdevice) = nullptr;
  CUresult (*PrimaryContextRelease)(CUdevice) = nullptr;
  CUresult (*PushCurrent)(CUcontext) = nullptr;
  CUresult (*PopCurrent)(CUcontext*) = nullptr;

  // Once per process; never closed. kInternal when there is no driver.
  static Result<const CudaDriver*> Load();

  Status StatusOf(CUresult result, const char* call, int device) const;
};

// GPUs that this process may use. Starts the driver. kInternal with the reason for none.
Result<int> CountDevices();

// "13.0" for 13000.
std::string VersionText(int version);

}  // namespace mydist::cuda
