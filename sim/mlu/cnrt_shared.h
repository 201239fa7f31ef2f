// Functions that CNRT 4.x and 6.x have alike. Each file that includes this says which number stands for which error, and
// has ready(): 0, or the error where this thread has no device.
#include "device.h"

extern "C" {

int cnrtGetDeviceCount(unsigned *count) {
  *count = 1;
  return 0;
}

int cnrtMalloc(void **address, size_t bytes) {
  if (const int status = ready()) return status;
  return cuvil_mlu::allocate(bytes, reinterpret_cast<uintptr_t *>(address)) == 0 ? 0 : NO_MEMORY;
}

int cnrtFree(void *address) {
  if (const int status = ready()) return status;
  return cuvil_mlu::release(reinterpret_cast<uintptr_t>(address)) == 0 ? 0 : INVALID;
}

int cnrtMemcpy(void *to, void *from, size_t bytes, int way) {
  if (const int status = ready()) return status;
  enum { HOST_TO_DEVICE, DEVICE_TO_DEVICE, DEVICE_TO_HOST };
  if (way < HOST_TO_DEVICE || way > DEVICE_TO_HOST) return cuvil_mlu::fail("copy direction %d is not simulated", way), BAD_COPY;
  const auto target = reinterpret_cast<uintptr_t>(to), source = reinterpret_cast<uintptr_t>(from);
  return cuvil_mlu::copy_bytes(target, source, bytes, way != DEVICE_TO_HOST, way != HOST_TO_DEVICE) == 0 ? 0 : BAD_COPY;
}

const char *cnrtGetErrorStr(int) { return cuvil_mlu::last_error(); }

}
