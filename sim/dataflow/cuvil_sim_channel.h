// A first-in first-out queue of true depth between two processes with clocks, apart from its words (cuvil_sim_fifo.h).
//
// Time, in cycles. Each process has a clock. A word carries the cycle in which it was written:
//   read:      clock = max(clock, cycle in which the word was written + 1, cycle of the last read of this stream + 1)
//   write:     clock = max(clock, cycle in which the word `depth` places before was read + 1, last write + 1)
//   read_nb, empty at cycle c:   there is a word if it was written before c
//   write_nb, full at cycle c:   there is room if the word `depth` places before was read before c
// Nothing here depends on the order in which the host runs the processes: only which of them can go on does.
#ifndef CUVIL_SIM_CHANNEL_H
#define CUVIL_SIM_CHANNEL_H

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <vector>

namespace cuvil {
namespace sim {

typedef std::int64_t Cycle;
struct Task;

constexpr Cycle kNever = INT64_MIN / 4;

// What one end of a channel had counted when its process ended a sample.
struct ReadMark {
    Cycle waited;        // cycles that the reader waited for words
    Cycle held;          // sum over all words of the cycles that they lay in the queue
    std::uint64_t read;  // words
    std::uint64_t state; // digest of what decides about later writes; 0 until both ends have ended the sample
};
struct WriteMark {
    Cycle waited;  // cycles that the writer waited for room
    Cycle clock;
};

class Channel {
    friend class Scheduler;

    Cycle* written_at_ = nullptr;  // of the last `capacity_` words; words and reads lie in rings of the same size
    Cycle* read_at_ = nullptr;
    Cycle last_read_ = kNever, last_write_ = kNever;
    std::uint64_t judged_writes_ = 0, judged_reads_ = 0;
    Task* sleeping_reader_ = nullptr;
    Task* sleeping_writer_ = nullptr;

    void wait_for_word();
    void wait_for_room();
    void bind(Task*& end, bool writes);
    void digest(std::size_t sample);
    void stall();
    static void wake(Task*& sleeper);

    // The most words that lie in the queue at once. A word counts from the cycle in which it is written to that in which it
    // is read; both ends are known up to some cycle, and writes are judged up to there.
    void judge() {
        while (judged_writes_ < written && judged_reads_ < read) {
            if (read_at_[judged_reads_ & mask_] < written_at_[judged_writes_ & mask_]) {
                ++judged_reads_;
            } else {
                ++judged_writes_;
                if (judged_writes_ - judged_reads_ > most) most = judged_writes_ - judged_reads_;
            }
        }
    }

  protected:
    std::uint64_t capacity_ = 0, mask_ = 0;

    template <class X> static void regrow(X*& ring, std::uint64_t had, std::uint64_t has, std::uint64_t end) {
        X* larger = static_cast<X*>(::aligned_alloc(64, (has * sizeof(X) + 63) / 64 * 64));
        if (!larger) throw std::bad_alloc();
        for (std::uint64_t i = end > had ? end - had : 0; i < end; ++i)
            std::memcpy(static_cast<void*>(larger + (i & (has - 1))), ring + (i & (had - 1)), sizeof(X));
        std::free(ring);
        ring = larger;
    }
    // Rings hold what is in the queue, and the last `depth` + 1 reads, which later writes wait for or are judged by.
    bool must_grow() const { return written - read >= capacity_ || (written >= capacity_ && capacity_ <= depth); }
    std::uint64_t larger() const { return capacity_ ? 2 * capacity_ : 4; }
    void grow_times(std::uint64_t capacity) {
        regrow(written_at_, capacity_, capacity, written);
        regrow(read_at_, capacity_, capacity, read);
        capacity_ = capacity;
        mask_ = capacity - 1;
    }
    void before_read();
    void after_read();
    void before_write();
    void after_write();
    bool sees_word();
    bool sees_room();

  public:
    const char* name;
    std::uint64_t depth;
    bool port = false;  // of the design: no FIFO of its own
    Task* reader = nullptr;
    Task* writer = nullptr;
    std::uint64_t written = 0, read = 0, most = 0;
    Cycle waited_for_word = 0, waited_for_room = 0, held = 0;
    std::vector<ReadMark> at_read;
    std::vector<WriteMark> at_write;
    std::vector<Cycle> recent;  // reads of the last sample, until its writer has ended it as well

    Channel(const char* channel_name, std::uint64_t words);
    Channel(const Channel&) = delete;
    Channel& operator=(const Channel&) = delete;
    ~Channel();
    void set_depth(std::uint64_t words);
    void settle() { judge(); }  // `most` is right from here on
    void reader_ended(std::size_t sample);
    void writer_ended(std::size_t sample, Cycle clock);
};

}  // namespace sim
}  // namespace cuvil

#endif
