// Runs the design on the golden vectors in golden.txt and compares every word. Returns the number of wrong words.
#include <cstdio>
#include <cstdlib>

#include "${project}_top.h"
$compare
int main(int argc, char** argv) {
    std::FILE* file = std::fopen(argc > 1 ? argv[1] : "golden.txt", "r");
    if (!file) file = std::fopen("tb/golden.txt", "r");
    if (!file) {
        std::printf("golden.txt not found\n");
        return 1;
    }
    int samples = 0, wrong = 0;
    long words = 0;
    if (std::fscanf(file, "%d", &samples) != 1) return 1;
    for (int n = 0; n < samples; ++n) {
$body
    }
    std::fclose(file);
    std::printf("%d samples, %ld words compared, %d wrong\n", samples, words, wrong);
    return wrong ? 1 : 0;
}
