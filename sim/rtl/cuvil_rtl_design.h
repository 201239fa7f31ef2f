// The C functions of a library that holds one design. CUVIL_RTL_DESIGN(MODEL, PORTS): MODEL is Verilator's class; PORTS says
// with `bench` and `top` what its ports are.
#ifndef CUVIL_RTL_DESIGN_H
#define CUVIL_RTL_DESIGN_H

#include <cuvil_rtl.h>

namespace cuvil {
namespace rtl {

inline int failed(const std::exception& e, char* error, long size) {
    std::snprintf(error, size_t(size), "%s", e.what());
    return 1;
}

template <class MODEL> struct Design {
    VerilatedContext context;
    std::unique_ptr<MODEL> top;
    Bench bench;
    std::string timing;
#if defined(CUVIL_RTL_FST) || defined(CUVIL_RTL_VCD)
    CuvilTrace trace;
#endif

    // `roms`: the folder of cuvil_rom's files. What no reset sets holds random bits.
    Design(const char* roms, const char* trace_file) {
        const std::string argument = std::string("+cuvil_rom=") + roms;
        const char* arguments[] = {"design", argument.c_str()};
        context.commandArgs(2, arguments);
        context.randReset(2);
        context.randSeed(1);
        context.traceEverOn(*trace_file != 0);
        top.reset(new MODEL(&context, "TOP"));
#if defined(CUVIL_RTL_FST) || defined(CUVIL_RTL_VCD)
        if (*trace_file) {
            top->trace(&trace, 99);
            trace.open(trace_file);
            if (!trace.isOpen()) throw std::runtime_error(std::string(trace_file) + " can't be written");
        }
#endif
    }
    ~Design() {
        top->final();
#if defined(CUVIL_RTL_FST) || defined(CUVIL_RTL_VCD)
        if (trace.isOpen()) trace.close();
#endif
    }

    void half(int high) {
        top->clk = CData(high);
        top->eval();
#if defined(CUVIL_RTL_FST) || defined(CUVIL_RTL_VCD)
        if (trace.isOpen()) trace.dump(context.time());
#endif
        context.timeInc(1);
    }

    void restart(uint64_t seed, int percent) {
        bench.rest();
        top->rst = 1;
        for (int n = 0; n < IN_RESET; ++n) half(0), half(1);
        top->rst = 0;
        bench.restart(seed, percent);
    }
};

}  // namespace rtl
}  // namespace cuvil

#define CUVIL_RTL_DESIGN(MODEL, PORTS)                                                                                      \
    typedef cuvil::rtl::Design<MODEL> CuvilDesign;                                                                          \
    extern "C" {                                                                                                            \
    int cuvil_rtl_open(const char* roms, const char* trace, const char* channels, void** made, char* error, long size) try {  \
        std::unique_ptr<CuvilDesign> design(new CuvilDesign(roms, trace));                                                  \
        cuvil::rtl::Bench& bench = design->bench;                                                                           \
        MODEL& top = *design->top;                                                                                          \
        PORTS;                                                                                                              \
        design->half(0);                                                                                                    \
        bench.watch(design->context, channels);                                                                             \
        design->restart(0, 0);                                                                                              \
        *made = design.release();                                                                                           \
        return 0;                                                                                                           \
    } catch (const std::exception& e) {                                                                                     \
        return cuvil::rtl::failed(e, error, size);                                                                          \
    }                                                                                                                       \
    void cuvil_rtl_restart(void* design, unsigned long seed, int percent) {                                                 \
        static_cast<CuvilDesign*>(design)->restart(seed, percent);                                                          \
    }                                                                                                                       \
    void cuvil_rtl_limit(void* design, const char* channel, long words) {                                                   \
        static_cast<CuvilDesign*>(design)->bench.limit(channel, words);                                                     \
    }                                                                                                                       \
    int cuvil_rtl_run(void* made, const void* const* inputs, void* const* outputs, const long* in_words,                    \
                      const long* out_words, long samples, int packet, long patience, char* error, long size) try {         \
        CuvilDesign& design = *static_cast<CuvilDesign*>(made);                                                             \
        design.bench.run(inputs, outputs, in_words, out_words, samples, packet != 0, patience,                              \
                         [&design](int high) { design.half(high); });                                                       \
        return 0;                                                                                                           \
    } catch (const std::exception& e) {                                                                                     \
        return cuvil::rtl::failed(e, error, size);                                                                          \
    }                                                                                                                       \
    long cuvil_rtl_clock(void* design) { return static_cast<CuvilDesign*>(design)->bench.clock(); }                         \
    const char* cuvil_rtl_timing(void* made) {                                                                              \
        CuvilDesign& design = *static_cast<CuvilDesign*>(made);                                                             \
        return (design.timing = design.bench.timing()).c_str();                                                             \
    }                                                                                                                       \
    void cuvil_rtl_close(void* design) { delete static_cast<CuvilDesign*>(design); }                                        \
    }

#endif
