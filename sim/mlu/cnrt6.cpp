// CNRT 6.x: what the runtime asks of it besides the modules of CNDrv, whose queues and memory these are.
enum { INVALID = 100010, NO_MEMORY = 100100, BAD_COPY = 632019, TRAP = 100132, NO_DEVICE = 100004 };
static int ready() { return 0; }  // device 0 is current where none was chosen
#include "cnrt_shared.h"

using namespace cuvil_mlu;

extern "C" {

int cnrtSetDevice(int ordinal) {
  if (ordinal == 0) return 0;
  return fail("there is one device, number 0"), NO_DEVICE;
}

int cnrtDeviceGetAttribute(int *value, int number, int) { return attribute(number, value) == 0 ? 0 : INVALID; }

int cnrtQueueCreate(void **queue) {
  *queue = new_queue();
  return 0;
}

int cnrtQueueDestroy(void *queue) {
  delete_queue(static_cast<Queue *>(queue));
  return 0;
}

int cnrtQueueSync(void *queue) { return wait(static_cast<Queue *>(queue)) == 0 ? 0 : TRAP; }

}
