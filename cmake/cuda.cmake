# The CUDA/NCCL backend is not part of this version; the option exists so that asking for it is a
# clear answer and not an unknown variable.
mydist_decide(CUDA "the CUDA backend is not part of mydist ${MYDIST_VERSION}")
