// FakeCuda: GPUs for a torch without CUDA: fake devices behind c10's guard, allocator and a few
// kernels for the device type CUDA, and behind the plugin that the engine is given.
// One per process, as torch keeps what is registered. Memory passes from owner to owner as torch
// hands it on: the last one has written to it on the stream it is allocated on, and the next one
// will, behind the streams that were recorded for it. So what uses it out of order fails the test.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/Stream.h>

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "fakes/fake_device.h"
#include "fakes/fake_plugin.h"

namespace mydist::testing {

class FakeCuda {
 public:
  static constexpr int kGpuCount = 2;

  // Registers everything at the first call.
  static FakeCuda& Instance();

  // New GPUs, and no stream but the default ones; all threads use these.
  void Begin(Pace pace);
  // Does what is queued; the first violation, if there is one. No tensor is left, nor an engine.
  std::string End();

  DevicePlugin* plugin() { return plugin_.get(); }
  FakeDevice& gpu(int index) { return *gpus_[static_cast<size_t>(index)]; }

  static at::Device DeviceAt(int index) {
    return {at::kCUDA, static_cast<c10::DeviceIndex>(index)};
  }
  c10::Stream NewStream(int gpu);
  // The only one in torch's pool, the same in all tests; the second GPU has no pool.
  static c10::Stream Pooled() { return c10::Stream(c10::Stream::UNSAFE, DeviceAt(0), kPooled); }
  StreamHandle NativeOf(const c10::Stream& stream) const;
  StreamHandle Current(int gpu) const;

  // Of float32, written by the current stream, some time.
  at::Tensor Make(const std::vector<float>& values, int gpu = 0);
  // As the current stream sees it; waits.
  std::vector<float> Read(const at::Tensor& tensor);

  // What torch does to give its cache back; null: nothing, as there is none.
  std::function<void()> on_empty_cache;

  // For what torch calls.
  at::DataPtr Allocate(size_t bytes);
  void RecordOn(const at::DataPtr& memory, const c10::Stream& stream);
  void CopyTo(const at::Tensor& target, const at::Tensor& source);
  void Zero(const at::Tensor& target);

 private:
  static constexpr c10::StreamId kPooled = -1;
  struct Block;
  struct Stream {
    FakeDevice* gpu;
    void* native;
  };
  static void FreeBlock(void* block);
  static void Overwrite(FakeDevice& device, StreamHandle stream, const char* who,
                        const Block& block);
  void Reuse(Block& block);

  std::vector<std::shared_ptr<FakeDevice>> gpus_;
  std::unique_ptr<FakePlugin> plugin_;
  std::vector<Stream> streams_;  // By id; 0: the default one of each GPU.
  StreamHandle pooled_;
  std::vector<std::shared_ptr<uint8_t>> kept_;  // What streams may still use, until End.
};

}  // namespace mydist::testing
