// Runs the design on the golden vectors in golden.txt, all samples in one packet where it can, and compares every word and where packets
// end. Returns 0 when nothing is wrong.
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
    int samples = 0, wrong = 0, misplaced = 0;
    long words = 0;
    if (std::fscanf(file, "%d", &samples) != 1) return 1;
    for (int n = 0; n < samples; ++n) {
        const bool ends = $ends;
$body
    }
    std::fclose(file);
    std::printf("%d samples, %ld words compared, %d wrong", samples, words, wrong);
    if (misplaced) std::printf(", %d where a packet wrongly ends or goes on", misplaced);
    std::printf("\n");
    return wrong || misplaced ? 1 : 0;
}
