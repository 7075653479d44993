// The codecs, one file each; part of gradient_codec.cc and of those files only.
#pragma once

#include "kernels/compress/gradient_codec.h"

namespace mydist {

CodecRow DgcRow();
CodecRow Int8Row();
CodecRow ThresholdRow();
CodecRow TopKRow();
CodecRow Fp8Row();
CodecRow OneBitRow();
CodecRow SignSgdRow();
CodecRow QsgdRow();
CodecRow TernGradRow();
CodecRow NaturalRow();

}  // namespace mydist
