// Fast simulation of hls::stream<T> and hls::stream<T, DEPTH>.
//
// Default: an unbounded first-in first-out queue for processes that run one after the other. Depth is ignored. Reading an
// empty stream throws std::runtime_error with the stream's name, since in hardware that process would wait for ever. Data
// left behind when a stream dies would poison the next run in hardware: it is noted for the runner (leftover()).
//
// -DCUVIL_SIM_BOUNDED: true depths (Vitis default: 2), reads and writes that block, and time; see cuvil_sim_channel.h.
//
// An unbounded stream starts in storage of its own and allocates only past kInlineBytes, from a per-thread pool: constructing the
// streams of a design for each sample costs next to nothing. One stream belongs to one thread.
#ifndef CUVIL_SIM_HLS_STREAM_H
#define CUVIL_SIM_HLS_STREAM_H

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <type_traits>

#ifdef CUVIL_SIM_BOUNDED
#include <cuvil_sim_fifo.h>
#endif

#define CUVIL_SIM_STREAM 1

namespace hls {
namespace sim {

constexpr std::size_t kInlineBytes = 1024;

// Text about the first stream of this thread that died with data in it; empty if none did.
inline char (&leftover())[192] {
    static thread_local char text[192];
    return text;
}

inline void note_leftover(const char* name, std::size_t words) {
    char(&text)[192] = leftover();
    if (text[0] == 0)
        std::snprintf(text, sizeof text, "stream '%s' ends with %zu unread word(s): its writer and reader disagree on the count",
                      name, words);
}

[[noreturn]] inline void underflow(const char* name) {
    throw std::runtime_error(std::string("stream '") + name +
                             "' is read while empty: in hardware the reading process would wait for ever");
}

// Blocks of 2^k bytes, kept per thread so that streams of millions of short calls never meet the allocator twice.
class Pool {
    struct Block { Block* next; };
    struct Free { Block* list[48]; bool closed; };
    static Free& free_blocks() {
        static thread_local Free blocks;
        return blocks;
    }
    struct Drain {
        ~Drain() {
            Free& blocks = free_blocks();
            blocks.closed = true;  // streams of static lifetime may die later than this thread's pool
            for (Block*& list : blocks.list)
                while (list) {
                    Block* next = list->next;
                    std::free(list);
                    list = next;
                }
        }
    };

  public:
    static void* take(int log2_bytes) {
        static thread_local Drain drain;
        (void)&drain;
        Block*& list = free_blocks().list[log2_bytes];
        if (list) {
            Block* block = list;
            list = block->next;
            return block;
        }
        void* block = ::aligned_alloc(64, std::size_t(1) << log2_bytes);
        if (!block) throw std::bad_alloc();
        return block;
    }
    static void give(void* memory, int log2_bytes) {
        Free& blocks = free_blocks();
        if (blocks.closed) {
            std::free(memory);
            return;
        }
        Block* block = static_cast<Block*>(memory);
        block->next = blocks.list[log2_bytes];
        blocks.list[log2_bytes] = block;
    }
};

}  // namespace sim

template <class T, int DEPTH = 0> class stream;

#ifdef CUVIL_SIM_BOUNDED

template <class T> class stream<T, 0> {
    static_assert(std::is_trivially_copyable<T>::value && std::is_trivially_destructible<T>::value,
                  "the simulator's streams carry plain data only");
    mutable cuvil::sim::Fifo<T> fifo_;

  public:
    // `name` is kept by pointer: it must outlive the stream, as a literal does.
    explicit stream(const char* name = "unnamed") : fifo_(name, 2) {}
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;
    ~stream() {
        if (fifo_.held_now()) sim::note_leftover(fifo_.name, fifo_.held_now());
    }
    __attribute__((always_inline)) T read() {
        if (__builtin_expect(cuvil::sim::outside() && !fifo_.held_now(), 0)) sim::underflow(fifo_.name);
        return fifo_.take();
    }
    void read(T& word) { word = read(); }
    __attribute__((always_inline)) void write(const T& word) { fifo_.put(word); }
    void operator>>(T& word) { word = read(); }
    void operator<<(const T& word) { write(word); }
    bool empty() const { return !fifo_.has_word(); }
    bool full() const { return !fifo_.has_room(); }
    std::size_t size() const { return fifo_.held_now(); }
    const char* name() const { return fifo_.name; }
    bool read_nb(T& word) {
        if (empty()) return false;
        word = read();
        return true;
    }
    bool write_nb(const T& word) {
        if (full()) return false;
        write(word);
        return true;
    }
    // Forget all words.
    void clear() {
        while (fifo_.held_now()) fifo_.take();
    }
    void set_depth(std::size_t words) { fifo_.set_depth(words); }
    cuvil::sim::Channel& channel() { return fifo_; }
};

#else

template <class T> class stream<T, 0> {
    static_assert(std::is_trivially_copyable<T>::value && std::is_trivially_destructible<T>::value,
                  "the simulator's streams carry plain data only");
    static constexpr std::size_t kInline = sizeof(T) < sim::kInlineBytes ? sim::kInlineBytes / sizeof(T) : 1;

    T* data_;
    std::size_t head_ = 0, tail_ = 0, capacity_ = kInline;
    const char* name_;
    int log2_bytes_ = 0;  // of the pool's block; 0: inline storage
    alignas(T) unsigned char inline_[kInline * sizeof(T)];

    __attribute__((noinline, cold)) void make_room() {
        const std::size_t words = tail_ - head_;
        if (words * 2 <= capacity_) {  // mostly read already: move down
            std::memmove(data_, data_ + head_, words * sizeof(T));
        } else {
            // Eight times as much: what is copied while growing is little, and pages never written cost nothing.
            int log2_bytes = log2_bytes_ ? log2_bytes_ + 3 : 13;
            while ((std::size_t(1) << log2_bytes) < 2 * capacity_ * sizeof(T)) ++log2_bytes;
            T* data = static_cast<T*>(sim::Pool::take(log2_bytes));
            std::memcpy(data, data_ + head_, words * sizeof(T));
            if (log2_bytes_) sim::Pool::give(data_, log2_bytes_);
            data_ = data;
            log2_bytes_ = log2_bytes;
            capacity_ = (std::size_t(1) << log2_bytes) / sizeof(T);
        }
        head_ = 0;
        tail_ = words;
    }
  public:
    // `name` is kept by pointer: it must outlive the stream, as a literal does.
    explicit stream(const char* name = "unnamed") : data_(reinterpret_cast<T*>(inline_)), name_(name) {
        static_assert(alignof(T) <= 64, "alignment beyond 64 bytes");
    }
    stream(const stream&) = delete;
    stream& operator=(const stream&) = delete;
    ~stream() {
        if (__builtin_expect(head_ != tail_, 0)) sim::note_leftover(name_, tail_ - head_);
        if (log2_bytes_) sim::Pool::give(data_, log2_bytes_);
    }

    // Blocking read; throws std::runtime_error where no process could ever fill the stream.
    __attribute__((always_inline)) T read() {
        if (__builtin_expect(head_ == tail_, 0)) sim::underflow(name_);
        return data_[head_++];
    }
    void read(T& word) { word = read(); }
    __attribute__((always_inline)) void write(const T& word) {
        if (__builtin_expect(tail_ == capacity_, 0)) {
            const T copy = word;  // `word` may live in the block that make_room gives away
            make_room();
            new (data_ + tail_++) T(copy);
        } else {
            new (data_ + tail_++) T(word);
        }
    }
    void operator>>(T& word) { word = read(); }
    void operator<<(const T& word) { write(word); }
    bool empty() const { return head_ == tail_; }
    std::size_t size() const { return tail_ - head_; }
    const char* name() const { return name_; }
    bool read_nb(T& word) {
        if (empty()) return false;
        word = read();
        return true;
    }
    bool write_nb(const T& word) {
        if (full()) return false;
        write(word);
        return true;
    }
    // Forget all words; the capacity stays.
    void clear() {
        head_ = tail_ = 0;
    }
    bool full() const { return false; }
    void set_depth(std::size_t) {}
};

#endif

template <class T, int DEPTH> class stream : public stream<T, 0> {
    static_assert(DEPTH > 0, "a stream's depth is a positive number of words");

  public:
    explicit stream(const char* name = "unnamed") : stream<T, 0>(name) { this->set_depth(DEPTH); }
};

}  // namespace hls

#endif
