// CNRT 4.x, of the MLU270: kernels are host symbols, arguments are collected in a buffer.
enum { INVALID = 632007, NO_MEMORY = 632008, NO_DEVICE = 632009, BAD_COPY = 632036, BAD_QUEUE = 632025 };
#include <vector>

#include "device.h"

namespace {
thread_local bool current;  // each thread has to choose its device
int ready() {
  if (current) return 0;
  return cuvil_mlu::fail("no device is current in this thread"), NO_DEVICE;
}
}  // namespace

#include "cnrt_shared.h"

using namespace cuvil_mlu;

namespace {
struct Dim3 {
  unsigned x, y, z;
};
const int BLOCK = 1;
using Parameters = std::vector<unsigned char>;
}  // namespace

extern "C" {

int cnrtInit(unsigned) { return 0; }
void cnrtDestroy() {}

int cnrtGetDeviceHandle(uint64_t *device, int ordinal) {
  *device = 1;
  if (ordinal == 0) return 0;
  return fail("there is one device, number 0"), NO_DEVICE;
}

int cnrtSetCurrentDevice(uint64_t device) {
  current = device == 1;
  return current ? 0 : NO_DEVICE;
}

int cnrtCreateQueue(void **queue) {
  if (const int status = ready()) return status;
  *queue = new_queue();
  return 0;
}

int cnrtDestroyQueue(void *queue) {
  delete_queue(static_cast<Queue *>(queue));
  return 0;
}

int cnrtSyncQueue(void *queue) { return wait(static_cast<Queue *>(queue)) == 0 ? 0 : BAD_QUEUE; }

int cnrtGetKernelParamsBuffer(void **parameters) {
  *parameters = new Parameters;
  return 0;
}

int cnrtKernelParamsBufferAddParam(void *parameters, void *data, size_t bytes) {
  auto *all = static_cast<Parameters *>(parameters);
  all->insert(all->end(), static_cast<unsigned char *>(data), static_cast<unsigned char *>(data) + bytes);
  return 0;
}

int cnrtDestroyKernelParamsBuffer(void *parameters) {
  delete static_cast<Parameters *>(parameters);
  return 0;
}

int cnrtInvokeKernel_V2(const void *function, Dim3 dim, void *parameters, int kind, void *queue) {
  if (const int status = ready()) return status;
  if (kind != BLOCK) return fail("only BLOCK tasks are simulated, not union tasks (%d)", kind), INVALID;
  if (dim.x == 0 || dim.y != 1 || dim.z != 1) return fail("a launch of %u x %u x %u tasks; y and z must be 1 here", dim.x, dim.y, dim.z), INVALID;
  Kernel *kernel = kernel_at(function);
  if (kernel == nullptr) return INVALID;
  const auto *all = static_cast<Parameters *>(parameters);
  return enqueue_packed(static_cast<Queue *>(queue), kernel, dim.x, all->data(), all->size()) == 0 ? 0 : INVALID;
}

}
