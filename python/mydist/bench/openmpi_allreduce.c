// MPI_Allreduce of Open MPI, timed the same way as mydist.bench times mydist: every rank rewrites
// its buffer, all meet at a barrier, the call is timed on every rank and the slowest rank counts.
//   mpirun -np N openmpi_allreduce TYPE ELEMENTS:ITERATIONS ...
// Rank 0 prints "times ELEMENTS t1 t2 ..." per pair, in microseconds.
#include <mpi.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { kWarmUpCount = 2 };

typedef struct {
  MPI_Datatype mpi;
  int size_bytes;
} Type;

static int FindType(const char* name, Type* type) {
  const struct {
    const char* name;
    Type type;
  } known[] = {{"float32", {MPI_FLOAT, 4}},
               {"float64", {MPI_DOUBLE, 8}},
               {"int32", {MPI_INT32_T, 4}},
               {"int64", {MPI_INT64_T, 8}}};
  for (size_t i = 0; i < sizeof(known) / sizeof(known[0]); ++i) {
    if (strcmp(known[i].name, name) == 0) {
      *type = known[i].type;
      return 1;
    }
  }
  return 0;
}

static void Fill(void* buffer, const char* name, long count, int value) {
  for (long i = 0; i < count; ++i) {
    if (strcmp(name, "float32") == 0) {
      ((float*)buffer)[i] = (float)value;
    } else if (strcmp(name, "float64") == 0) {
      ((double*)buffer)[i] = value;
    } else if (strcmp(name, "int32") == 0) {
      ((int32_t*)buffer)[i] = value;
    } else {
      ((int64_t*)buffer)[i] = value;
    }
  }
}

static double First(const void* buffer, const char* name) {
  if (strcmp(name, "float32") == 0) return ((const float*)buffer)[0];
  if (strcmp(name, "float64") == 0) return ((const double*)buffer)[0];
  if (strcmp(name, "int32") == 0) return ((const int32_t*)buffer)[0];
  return (double)((const int64_t*)buffer)[0];
}

// Fills times[iterations]; gives 0 when a sum was wrong.
static int Measure(const char* name, Type type, long count, int iterations, double* times) {
  int rank = 0;
  int size = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  void* buffer = malloc((size_t)count * (size_t)type.size_bytes);
  if (buffer == NULL) return 0;
  int right = 1;
  for (int i = -kWarmUpCount; i < iterations; ++i) {
    double wanted = 0;
    for (int r = 0; r < size; ++r) wanted += (r + i + kWarmUpCount) % 5;
    Fill(buffer, name, count, (rank + i + kWarmUpCount) % 5);
    MPI_Barrier(MPI_COMM_WORLD);
    const double started = MPI_Wtime();
    MPI_Allreduce(MPI_IN_PLACE, buffer, (int)count, type.mpi, MPI_SUM, MPI_COMM_WORLD);
    const double elapsed = MPI_Wtime() - started;
    if (i >= 0) times[i] = elapsed * 1e6;
    right = right && First(buffer, name) == wanted;
  }
  free(buffer);
  return right;
}

int main(int argc, char** argv) {
  MPI_Init(&argc, &argv);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  Type type = {MPI_FLOAT, 4};
  if (argc < 3 || !FindType(argv[1], &type)) {
    if (rank == 0) fprintf(stderr, "usage: openmpi_allreduce TYPE ELEMENTS:ITERATIONS ...\n");
    MPI_Abort(MPI_COMM_WORLD, 2);
  }
  for (int i = 2; i < argc; ++i) {
    long count = 0;
    int iterations = 0;
    if (sscanf(argv[i], "%ld:%d", &count, &iterations) != 2 || count < 1 || iterations < 1) {
      MPI_Abort(MPI_COMM_WORLD, 2);
    }
    double* times = calloc((size_t)iterations, sizeof(double));
    if (times == NULL || !Measure(argv[1], type, count, iterations, times)) {
      fprintf(stderr, "rank %d: wrong sum or out of memory at %ld elements\n", rank, count);
      MPI_Abort(MPI_COMM_WORLD, 1);
    }
    MPI_Reduce(rank == 0 ? MPI_IN_PLACE : times, times, iterations, MPI_DOUBLE, MPI_MAX, 0,
               MPI_COMM_WORLD);
    if (rank == 0) {
      printf("times %ld", count);
      for (int k = 0; k < iterations; ++k) printf(" %.3f", times[k]);
      printf("\n");
    }
    free(times);
  }
  MPI_Finalize();
  return 0;
}
