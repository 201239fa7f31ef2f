// A channel with its words.
#ifndef CUVIL_SIM_FIFO_H
#define CUVIL_SIM_FIFO_H

#include <cuvil_sim_tasks.h>

namespace cuvil {
namespace sim {

template <class T> class Fifo : public Channel {
    T* words_ = nullptr;

    __attribute__((noinline, cold)) void grow() {
        const std::uint64_t capacity = larger();
        regrow(words_, capacity_, capacity, written);
        grow_times(capacity);
    }

  public:
    Fifo(const char* channel_name, std::uint64_t words) : Channel(channel_name, words) {}
    ~Fifo() { std::free(words_); }

    // Outside of all processes a word has to be there, and there is always room.
    __attribute__((always_inline)) T take() {
        before_read();
        const T word = words_[read & mask_];
        after_read();
        return word;
    }
    __attribute__((always_inline)) void put(const T& given) {
        const T word = given;  // it may lie in the ring that grows
        before_write();
        if (__builtin_expect(must_grow(), 0)) grow();
        words_[written & mask_] = word;
        after_write();
    }
    bool has_word() { return sees_word(); }
    bool has_room() { return sees_room(); }
    std::uint64_t held_now() const { return written - read; }
};

}  // namespace sim
}  // namespace cuvil

#endif
