// The codecs, one file each; part of gradient_codec.cc and of those files only.
#pragma once

#include "kernels/compress/gradient_codec.h"

namespace mydist {

CodecRow Int8Row();

}  // namespace mydist
