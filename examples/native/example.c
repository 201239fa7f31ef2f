// Runs a saved model once: cc example.c model.so -lm -o example && ./example [FILE...]
// FILE: the raw values of an input, in order; an input without one is all zeros. Prints what each output is.

#include <stdio.h>
#include <stdlib.h>

#include "model.h"

static void *memory(size_t bytes) {
  void *piece = calloc(bytes + 1, 1);
  if (piece == NULL) {
    perror("memory");
    exit(1);
  }
  return piece;
}

int main(int count, char **files) {
  const void *in[MODEL_INPUTS + 1];
  void *out[MODEL_OUTPUTS + 1];
  for (int n = 0; n < MODEL_INPUTS; ++n) {
    const model_port *port = model_input(n);
    void *values = memory(port->bytes);
    if (n + 1 < count) {
      FILE *file = fopen(files[n + 1], "rb");
      if (file == NULL || fread(values, 1, port->bytes, file) != port->bytes) {
        fprintf(stderr, "%s: not the %zu bytes of input %s\n", files[n + 1], port->bytes, port->name);
        return 1;
      }
      fclose(file);
    }
    in[n] = values;
  }
  for (int n = 0; n < MODEL_OUTPUTS; ++n)
    out[n] = memory(model_output(n)->bytes);
  void *arena = memory(model_arena_bytes());

  int code = model_run(in, out, arena);
  if (code != 0) {
    fprintf(stderr, "the model refused its input: %s\n", model_error(code));
    return 1;
  }
  for (int n = 0; n < MODEL_OUTPUTS; ++n)
    printf("%s: %s, %zu bytes\n", model_output(n)->name, model_output(n)->dtype, model_output(n)->bytes);
  const MODEL_OUTPUT_0_TYPE *first = out[0];
  for (int i = 0; i < MODEL_OUTPUT_0_SIZE && i < 10; ++i)
    printf("%.9g\n", (double)first[i]);
  return 0;
}
