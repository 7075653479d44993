// What the peer programs share, in C: the tensor that a rank puts in, the check of what it gets,
// and what a call cost. The values are those of problem.py.
#ifndef MYDIST_BENCH_PEER_TENSOR_H_
#define MYDIST_BENCH_PEER_TENSOR_H_

#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>

enum { kPeerWarmUpCount = 2, kPeerPeriod = 7 };

typedef enum { kPeerFloat32, kPeerFloat64, kPeerInt32, kPeerInt64, kPeerNoType } PeerType;

typedef struct {
  const char* op;
  PeerType type;
  long elements;  // That a rank puts in.
  int rank;
  int ranks;
} PeerProblem;

static inline PeerType PeerTypeOf(const char* name) {
  static const char* const kNames[] = {"float32", "float64", "int32", "int64"};
  for (int i = 0; i < (int)kPeerNoType; ++i) {
    if (strcmp(name, kNames[i]) == 0) return (PeerType)i;
  }
  return kPeerNoType;
}

static inline long PeerTypeBytes(PeerType type) {
  return type == kPeerFloat32 || type == kPeerInt32 ? 4 : 8;
}

static inline int PeerIs(const PeerProblem* problem, const char* op) {
  return strcmp(problem->op, op) == 0;
}

static inline int PeerIsInPlace(const PeerProblem* problem) {
  return PeerIs(problem, "allreduce") || PeerIs(problem, "broadcast") || PeerIs(problem, "barrier");
}

static inline long PeerOutputElements(const PeerProblem* problem) {
  if (PeerIs(problem, "barrier")) return 0;
  if (PeerIs(problem, "allgather")) return problem->elements * problem->ranks;
  if (PeerIs(problem, "reducescatter")) return problem->elements / problem->ranks;
  return problem->elements;
}

static inline double PeerGet(const void* data, PeerType type, long i) {
  switch (type) {
    case kPeerFloat32: return (double)((const float*)data)[i];
    case kPeerFloat64: return ((const double*)data)[i];
    case kPeerInt32: return (double)((const int32_t*)data)[i];
    default: return (double)((const int64_t*)data)[i];
  }
}

static inline void PeerSet(void* data, PeerType type, long i, long value) {
  switch (type) {
    case kPeerFloat32: ((float*)data)[i] = (float)value; break;
    case kPeerFloat64: ((double*)data)[i] = (double)value; break;
    case kPeerInt32: ((int32_t*)data)[i] = (int32_t)value; break;
    default: ((int64_t*)data)[i] = value; break;
  }
}

static inline long PeerOffset(int rank, int iteration) { return (rank * 3 + iteration) % 5; }

static inline void PeerFill(const PeerProblem* problem, void* data, int iteration) {
  const long offset = PeerOffset(problem->rank, iteration);
  for (long i = 0; i < problem->elements; ++i) {
    PeerSet(data, problem->type, i, i % kPeerPeriod + offset);
  }
}

static inline long PeerExpected(const PeerProblem* problem, long i, int iteration) {
  const int ranks = problem->ranks;
  const long chunk = problem->elements / ranks;
  long sum_of_offsets = 0;
  for (int rank = 0; rank < ranks; ++rank) sum_of_offsets += PeerOffset(rank, iteration);
  if (PeerIs(problem, "allreduce")) return ranks * (i % kPeerPeriod) + sum_of_offsets;
  if (PeerIs(problem, "broadcast")) return i % kPeerPeriod + PeerOffset(0, iteration);
  if (PeerIs(problem, "allgather")) {
    const long at = i % problem->elements;
    return at % kPeerPeriod + PeerOffset((int)(i / problem->elements), iteration);
  }
  if (PeerIs(problem, "alltoall")) {
    const long at = problem->rank * chunk + i % chunk;
    return at % kPeerPeriod + PeerOffset((int)(i / chunk), iteration);
  }
  return ranks * ((problem->rank * chunk + i) % kPeerPeriod) + sum_of_offsets;
}

// 0, with a message, when the result is wrong.
static inline int PeerCheck(const PeerProblem* problem, const void* output, int iteration) {
  const long count = PeerOutputElements(problem);
  for (long i = 0; i < count; ++i) {
    const double got = PeerGet(output, problem->type, i);
    const double expected = (double)PeerExpected(problem, i, iteration);
    if (got == expected) continue;
    fprintf(stderr, "%s of %ld elements gave a wrong result on rank %d: element %ld is %g, "
            "expected %g\n", problem->op, problem->elements, problem->rank, i, got, expected);
    return 0;
  }
  return 1;
}

typedef struct {
  double time_us;
  double cpu_s;
  double switches;
} PeerCost;

static inline double PeerClock(clockid_t clock) {
  struct timespec now;
  clock_gettime(clock, &now);
  return (double)now.tv_sec + (double)now.tv_nsec / 1e9;
}

static inline double PeerSwitches(void) {
  struct rusage usage;
  getrusage(RUSAGE_SELF, &usage);
  return (double)(usage.ru_nvcsw + usage.ru_nivcsw);
}

static inline PeerCost PeerStart(void) {
  PeerCost start;
  start.switches = PeerSwitches();
  start.cpu_s = PeerClock(CLOCK_PROCESS_CPUTIME_ID);
  start.time_us = PeerClock(CLOCK_MONOTONIC) * 1e6;
  return start;
}

static inline PeerCost PeerStop(PeerCost start) {
  PeerCost cost;
  cost.time_us = PeerClock(CLOCK_MONOTONIC) * 1e6 - start.time_us;
  cost.cpu_s = PeerClock(CLOCK_PROCESS_CPUTIME_ID) - start.cpu_s;
  cost.switches = PeerSwitches() - start.switches;
  return cost;
}

// What rank 0 prints for the tool that started the program.
static inline void PeerPrint(long elements, double cpu_s, double switches, const double* times_us,
                             int count) {
  printf("result %ld %.9g %.9g", elements, cpu_s, switches);
  for (int i = 0; i < count; ++i) printf(" %.4f", times_us[i]);
  printf("\n");
}

#endif  // MYDIST_BENCH_PEER_TENSOR_H_
