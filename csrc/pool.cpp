#include "pool.h"
