// Depthwise convolutions (any channel multiplier) over contiguous tensors: vectors run along the row.
#include "problem.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

extern const Family contiguous;
const Family contiguous = {
    "contiguous", [](const Problem&, Direction) -> const char* { return "not written yet"; },
    nullptr,      nullptr,
    nullptr,
};

}  // namespace leanconv::LEANCONV_ISA
