#include "gpu/host_cuda/world.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <random>
#include <utility>

namespace mydist::host_cuda {

World& World::Get() {
  static auto* world = new World;  // Its threads use it until the process ends.
  return *world;
}

ThreadState& World::Thread() {
  thread_local ThreadState state;
  return state;
}

World::World() {
  for (int i = 0; i < kGpuCount; ++i) gpus[static_cast<size_t>(i)].context.gpu = i;
}

void World::Complain(const std::string& what) {
  const std::string text = call_ + ": " + what;
  if (collected != nullptr) {
    collected->push_back(text);
    return;
  }
  static_cast<void>(std::fprintf(stderr, "HostCuda: %s\n", text.c_str()));
  std::abort();
}

cudaError_t World::Begin(const std::string& call, Needs needs) {
  call_ = call;
  if (process_ == 0) process_ = getpid();
  if (process_ != getpid()) return cudaErrorInitializationError;
  if (const auto failure = failures.extract(call); !failure.empty()) return failure.mapped();
  if (needs == Needs::kNothing) return cudaSuccess;
  if (const cudaError_t broken = current().broken; broken != cudaSuccess) return broken;
  if (needs == Needs::kGpuAndNoGraph && !MayDuringCapture()) {
    return cudaErrorStreamCaptureUnsupported;
  }
  return cudaSuccess;
}

// CUDA would start GPU 0, with hundreds of MB of its memory.
int World::CurrentGpu() {
  ThreadState& thread = Thread();
  if (thread.current.empty()) {
    Complain("no GPU is current");
    thread.current.push_back(0);
  }
  return thread.current.back();
}

// As the mode of a capture and that of this thread say (cudaThreadExchangeStreamCaptureMode).
bool World::MayDuringCapture() {
  const cudaStreamCaptureMode own = Thread().capture_mode;
  if (own == cudaStreamCaptureModeRelaxed) return true;
  for (CUstream_st* stream : streams) {
    if (stream->capture == nullptr || stream->capture_mode == cudaStreamCaptureModeRelaxed) {
      continue;
    }
    if (stream->capturer == std::this_thread::get_id()) return false;
    if (stream->capture_mode == cudaStreamCaptureModeGlobal && own == cudaStreamCaptureModeGlobal) {
      return false;
    }
  }
  return true;
}

CUstream_st* World::Resolve(cudaStream_t stream) {
  if (stream == nullptr) {
    CUstream_st*& of_gpu = current().default_stream;
    if (of_gpu == nullptr) of_gpu = AddStream(true);
    return of_gpu;
  }
  if (streams.contains(stream)) return stream;
  Complain("no such stream, or no longer");
  return nullptr;
}

bool World::Has(cudaEvent_t event) {
  if (events.contains(event)) return true;
  Complain("no such event, or no longer");
  return false;
}

bool World::Has(cudaGraph_t graph) {
  if (graphs.contains(graph)) return true;
  Complain("no such graph, or no longer");
  return false;
}

CUstream_st* World::AddStream(bool waits_for_default) {
  auto* stream = new CUstream_st{.gpu = CurrentGpu(), .waits_for_default = waits_for_default};
  streams.insert(stream);
  std::thread([this, stream] { Work(stream); }).detach();
  return stream;
}

void World::Put(CUstream_st& stream, std::function<void()> work) {
  if (stream.capture != nullptr) {
    stream.capture->works.push_back(std::move(work));
    return;
  }
  stream.items.push_back({.work = std::move(work)});
  news.NotifyAll();
}

MarkPointer World::MarkEnd(CUstream_st& stream) {
  const auto mark = std::make_shared<Mark>();
  stream.items.push_back({.ends = mark});
  news.NotifyAll();
  return mark;
}

cudaError_t World::Await(const MarkPointer& mark, int gpu) {
  while (!mark->is_over && this->gpu(gpu).broken == cudaSuccess) news.Wait(mutex);
  return this->gpu(gpu).broken;
}

cudaError_t World::AwaitGpu(int gpu) {
  std::vector<MarkPointer> ends;
  for (const auto* group : {&streams, &closing}) {
    for (CUstream_st* stream : *group) {
      if (stream->gpu == gpu) ends.push_back(MarkEnd(*stream));
    }
  }
  for (const MarkPointer& end : ends) {
    if (const cudaError_t error = Await(end, gpu); error != cudaSuccess) return error;
  }
  return cudaSuccess;
}

// What its thread does.
void World::Work(CUstream_st* stream) {
  std::minstd_rand random(static_cast<unsigned>(reinterpret_cast<uintptr_t>(stream) >> 4));
  MutexLock lock(mutex);
  while (true) {
    while (stream->items.empty() && !stream->is_closing) news.Wait(mutex);
    if (stream->items.empty()) {
      closing.erase(stream);
      old_streams.push_back(stream);
      return;
    }
    const Item item = std::move(stream->items.front());
    stream->items.pop_front();
    const auto is_broken = [&] { return gpu(stream->gpu).broken != cudaSuccess; };
    while (item.waits_for != nullptr && !item.waits_for->is_over && !is_broken()) news.Wait(mutex);
    if (item.work != nullptr && !is_broken()) {
      mutex.Unlock();
      for (unsigned turns = random() % 4; turns > 0; --turns) std::this_thread::yield();
      item.work();
      mutex.Lock();
    }
    if (item.ends != nullptr) {
      item.ends->is_over = true;
      item.ends->when = std::chrono::steady_clock::now();
    }
    news.NotifyAll();
  }
}

void FailNext(const std::string& call, cudaError_t error) {
  World& world = World::Get();
  MutexLock lock(world.mutex);
  world.failures[call] = error;
}

void BreakGpu(int gpu, cudaError_t error) {
  World& world = World::Get();
  MutexLock lock(world.mutex);
  world.gpu(gpu).broken = error;
  world.news.NotifyAll();
}

void RepairGpu(int gpu) { BreakGpu(gpu, cudaSuccess); }

cudaError_t LastError() { return World::Thread().last_error; }

Census TakeCensus() {
  World& world = World::Get();
  MutexLock lock(world.mutex);
  Census census = {.events = static_cast<int>(world.events.size()),
                   .device_blocks = world.memory.Count(false),
                   .pinned_blocks = world.memory.Count(true),
                   .graphs = static_cast<int>(world.graphs.size())};
  for (const CUstream_st* stream : world.streams) {
    if (world.gpu(stream->gpu).default_stream != stream) ++census.streams;
  }
  for (const Gpu& gpu : world.gpus) census.contexts += gpu.retained;
  return census;
}

Workload TakeWorkload() {
  World& world = World::Get();
  MutexLock lock(world.mutex);
  return world.workload;
}

namespace {

std::vector<std::string>& Collected() {
  static auto* texts = new std::vector<std::string>;
  return *texts;
}

}  // namespace

Complaints::Complaints() {
  World& world = World::Get();
  MutexLock lock(world.mutex);
  Collected().clear();
  world.collected = &Collected();
}

Complaints::~Complaints() {
  World& world = World::Get();
  MutexLock lock(world.mutex);
  world.collected = nullptr;
}

std::vector<std::string> Complaints::texts() const {
  World& world = World::Get();
  MutexLock lock(world.mutex);
  return Collected();
}

cudaError_t Launch(const void* kernel, cudaStream_t stream, std::function<void()> run) {
  return World::Get().Run("cudaLaunchKernel", Needs::kGpu, [&](World& world) {
    CUstream_st* const found = world.Resolve(stream);
    if (found == nullptr) return cudaErrorInvalidResourceHandle;
    if (found->gpu != world.CurrentGpu()) {
      world.Complain("a stream of another GPU");
      return cudaErrorInvalidResourceHandle;
    }
    if (!world.current().loaded.contains(kernel)) world.Complain("a kernel that was not loaded");
    world.Put(*found, std::move(run));
    ++world.workload.launches;
    return cudaSuccess;
  });
}

}  // namespace mydist::host_cuda
