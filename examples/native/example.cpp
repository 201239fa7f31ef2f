// The smallest C++ program around a saved model: c++ example.cpp model.so -lm -o example && ./example

#include <array>
#include <iostream>
#include <vector>

#include "model.h"

int main() {
  std::vector<MODEL_INPUT_0_TYPE> x(MODEL_INPUT_0_SIZE);
  std::array<MODEL_OUTPUT_0_TYPE, MODEL_OUTPUT_0_SIZE> y{};
  std::vector<char> arena(model_arena_bytes());
  const void *in[] = {x.data()};
  void *out[] = {y.data()};

  if (int code = model_run(in, out, arena.data())) {
    std::cerr << "the model refused its input: " << model_error(code) << "\n";
    return 1;
  }
  for (auto value : y)
    std::cout << +value << "\n";
}
