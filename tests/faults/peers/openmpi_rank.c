// A rank of plain Open MPI, with errors returned: openmpi_rank PHASE ACT VICTIM FOLDER
// What survivors see of a fault, as far as the library lets them see anything. See ../worker.py.
#include <mpi.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { kCount = 1 << 22, kStepsBefore = 5 };

static const char* folder;

static double Seconds(void) {
  struct timespec now;
  clock_gettime(CLOCK_MONOTONIC, &now);
  return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

// A row appears complete or not at all.
static void WriteRow(const char* name, const char* text) {
  char draft[4096];
  char path[4096];
  snprintf(path, sizeof path, "%s/%s", folder, name);
  snprintf(draft, sizeof draft, "%s.draft", path);
  FILE* file = fopen(draft, "w");
  if (file == NULL) abort();
  fprintf(file, "{\"pid\": %d, \"at\": %.6f, \"text\": \"%s\"}", (int)getpid(), Seconds(), text);
  fclose(file);
  rename(draft, path);
}

int main(int argc, char** argv) {
  if (argc != 5) return 2;
  folder = argv[4];
  MPI_Init(&argc, &argv);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  int rank = 0;
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  float* const data = calloc(kCount, sizeof *data);
  char name[64];
  for (int i = 0; i < kStepsBefore; ++i) {
    MPI_Allreduce(MPI_IN_PLACE, data, kCount, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  signal(SIGTERM, SIG_IGN);
  snprintf(name, sizeof name, "ready%d", rank);
  WriteRow(name, "");
  if (strcmp(argv[1], "between") == 0 && rank == atoi(argv[3])) {
    char go[4096];
    snprintf(go, sizeof go, "%s/go", folder);
    while (access(go, F_OK) != 0) usleep(2000);
    WriteRow("struck", "");
    exit(1);  // What a program does that an exception ends.
  }
  int code = MPI_SUCCESS;
  while (code == MPI_SUCCESS) {
    code = MPI_Allreduce(MPI_IN_PLACE, data, kCount, MPI_FLOAT, MPI_SUM, MPI_COMM_WORLD);
  }
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  snprintf(name, sizeof name, "learned%d", rank);
  WriteRow(name, text);
  return 1;
}
