// Depthwise convolutions (any channel multiplier) over channels_last tensors: vectors run over channels.
#include "problem.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

extern const Family channels_last;
const Family channels_last = {
    "channels_last", [](const Problem&, Direction) -> const char* { return "not written yet"; },
    nullptr,         nullptr,
    nullptr,
};

}  // namespace leanconv::LEANCONV_ISA
