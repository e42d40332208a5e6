// Grouped convolutions with few channels a group, in both layouts.
#include "problem.h"
#include "simd/vec.h"

namespace leanconv::LEANCONV_ISA {

extern const Family grouped;
const Family grouped = {
    "grouped", [](const Problem&, Direction) -> const char* { return "not written yet"; }, nullptr, nullptr,
    nullptr,
};

}  // namespace leanconv::LEANCONV_ISA
