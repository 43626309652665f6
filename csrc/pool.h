// Thread pool (see pool.cpp).
#pragma once
