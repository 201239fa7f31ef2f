// CNDrv, as far as modules and launches need it: names, argument order and error numbers of the vendor's driver library.
#include "device.h"

using namespace cuvil_mlu;

namespace {
enum { SUCCESS = 0, INVALID_VALUE = 100006, INVOKE_ERROR = 100200, INVALID_FATBIN = 100300, NOT_FOUND = 100301, NOT_SUPPORT = 100050 };
const unsigned BLOCK = 1;
}  // namespace

extern "C" {

int cnInit(unsigned) { return SUCCESS; }

int cnDeviceGetCount(int *count) {
  *count = 1;
  return SUCCESS;
}

int cnDeviceGet(uint64_t *device, int ordinal) {
  *device = 1;
  if (ordinal == 0) return SUCCESS;
  return fail("there is one device, number 0"), INVALID_VALUE;
}

int cnSharedContextAcquire(void **context, uint64_t) {
  static char shared;
  *context = &shared;
  return SUCCESS;
}

int cnCtxSetCurrent(void *context) { return context != nullptr ? SUCCESS : INVALID_VALUE; }

int cnModuleLoadFatBinary(const void *image, void **module) {
  return open_image(image, reinterpret_cast<Module **>(module)) == 0 ? SUCCESS : INVALID_FATBIN;
}

int cnModuleUnload(void *module) {
  close_module(static_cast<Module *>(module));
  return SUCCESS;
}

int cnModuleGetKernel(void *module, const char *name, void **kernel) {
  *kernel = find_kernel(static_cast<Module *>(module), name);
  return *kernel != nullptr ? SUCCESS : NOT_FOUND;
}

int cnInvokeKernel(void *kernel, unsigned x, unsigned y, unsigned z, unsigned kind, unsigned, void *queue, void **params, void **) {
  if (kind != BLOCK) return fail("only BLOCK tasks are simulated, not union tasks (%u)", kind), NOT_SUPPORT;
  if (x == 0 || y != 1 || z != 1) return fail("a launch of %u x %u x %u tasks; y and z must be 1 here", x, y, z), INVALID_VALUE;
  return enqueue(static_cast<Queue *>(queue), static_cast<Kernel *>(kernel), x, params) == 0 ? SUCCESS : INVOKE_ERROR;
}

int cnGetErrorString(int, const char **text) {
  *text = last_error();
  return SUCCESS;
}

}
