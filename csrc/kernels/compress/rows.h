// The codecs, one file each; part of gradient_codec.cc and of those files only.
#pragma once

#include "kernels/compress/gradient_codec.h"

namespace mydist {

CodecRow DgcRow();
CodecRow Int8Row();
CodecRow ThresholdRow();
CodecRow TopKRow();

}  // namespace mydist
