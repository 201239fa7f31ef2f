// The name by which kernels include the device language.
#pragma once

#include "bang.h"
