// The simulated card behind both of the vendor's runtime libraries. Lives in libcndrv.so.
#pragma once

#include <cstddef>
#include <cstdint>

namespace cuvil_mlu {

struct Queue;
struct Kernel;
struct Module;

// All return 0, or 1 after `fail` has set the text of the last error of this thread.
int allocate(size_t bytes, uintptr_t *address);
int release(uintptr_t address);
int copy_bytes(uintptr_t to, uintptr_t from, size_t bytes, bool to_device, bool from_device);
void free_bytes(size_t *left, size_t *total);
int open_module(const char *path, Module **module);
int open_image(const void *image, Module **module);
void close_module(Module *module);
Kernel *find_kernel(Module *module, const char *name);
// The kernel whose function lies at an address, in whatever library.
Kernel *kernel_at(const void *function);
Queue *new_queue();
void delete_queue(Queue *queue);
// Runs at once; what goes wrong is found when the queue is waited for, as on the card.
int enqueue(Queue *queue, Kernel *kernel, unsigned tasks, void **arguments);
int enqueue_packed(Queue *queue, Kernel *kernel, unsigned tasks, const unsigned char *packed, size_t bytes);
int wait(Queue *queue);
int attribute(int number, int *value);
int fail(const char *text, ...) __attribute__((format(printf, 1, 2)));
const char *last_error();

}  // namespace cuvil_mlu
