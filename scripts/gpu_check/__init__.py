"""Builds mydist from this tree, runs what needs a GPU, and prints a short table last.

    python3 -m scripts.gpu_check RESULTS [--files FOLDER] [--only PATTERN] [--minutes 8]
                                 [--commit NAME]

Needs no network. Python with torch (the one that runs this) and its headers (python3-dev), CMake,
Ninja, a C++20 compiler and nvcc have to be there; what else is missing is taken from FOLDER, if it
holds it:

    *.deb   libgtest-dev, libgmock-dev, googletest: the C++ tests
            libgloo-dev, libgloo0, libhiredis0.14, libibverbs1, libnl-3-200, libnl-route-3-200: the
            Gloo backend, without which nobody can pretend to be on two hosts: tests are left out,
            and row G4 has shared memory between its ranks
            openmpi-bin, openmpi-common, libopenmpi-dev, libopenmpi3, libevent-core-2.1-7,
            libevent-pthreads-2.1-7, libhwloc15, libmunge2, libpmix2: the MPI backend
    *.whl   nvidia-nccl-cu13: an NCCL other than torch's, which the tests in Python use then
            pytest, iniconfig, packaging, pluggy: the tests in Python

Packages of the C and C++ libraries of the system (libc6, libgcc-s1, libstdc++6) are refused: the
machine has its own. What is broken is named in the table, and costs nothing else.

A file too large to be brought in one go may come in pieces, as `split -d -b 50M FILE FILE.part`
makes them (FILE.part00, FILE.part01, …). Where each copy of a folder of pieces replaces the one
before, gather them in another: `mkdir -p /tmp/files && cp pieces/* /tmp/files` after every copy,
and then `--files /tmp/files`.

The folder RESULTS has three files, which are renewed after every step: results.json, summary.txt
with the table, and logs.tar.gz with the full logs and reports. Steps come in the order of what
would be missed most, so --minutes cuts off what has no figure; a second run with --only goes on
where the first one ended, as what is built stays. Files that an earlier run has left in RESULTS go
to earlier_1 there, the next ones to earlier_2.

Exit code 0 when all was run, measured and right, and no file broken; a figure that misses its
target is told and is no failure. Where there is no GPU, everything is built, and what needs one is
skipped with the reason, which is no failure either.
"""
