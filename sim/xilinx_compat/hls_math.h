// The hls_math.h of the ap_types that the hls4ml wheel carries has no functions on floats: the simulator's stands in.
#include "../hls/hls_math.h"
