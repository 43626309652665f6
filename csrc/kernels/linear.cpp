#include "../levels.h"
#include "../simd.h"

namespace octavo {
namespace OCTAVO_LEVEL {

void fill_linear(KernelTable*) {}

}  // namespace OCTAVO_LEVEL
}  // namespace octavo
