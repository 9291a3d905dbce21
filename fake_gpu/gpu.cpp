// The fake GPUs themselves: settings, memory that is counted but mostly not there, counters. Part of libcudart.
//
// Device memory is address space of this process, so that copies can be made. It takes host memory only where something
// was copied to it. Addresses are the same in every run and never used twice: a program that runs twice reads the same.
#include "gpu.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <mutex>
#include <vector>

namespace fake_gpu {
namespace {

constexpr uintptr_t BASE = 0x100000000000, SPAN = BASE;  // 16 TiB of address space for each GPU
constexpr int MAX_GPUS = 4;
constexpr size_t PAGE = 4096, LARGE = 2 << 20;

struct Counters {
    std::atomic<long> used, peak, pinned, pinned_peak, launches, allocations, failed;
} counters;

struct Memory {
    size_t used = 0;
    uintptr_t next = 0;
    std::map<uintptr_t, size_t> blocks;  // by address, for release()
} gpus[MAX_GPUS];

std::map<uintptr_t, size_t> pinned;
std::map<uintptr_t, size_t> registered;
std::mutex mutex;
std::atomic<pid_t> owner{0};

const char* text(const char* name, const char* otherwise) {
    const char* value = getenv(name);
    return value && *value ? value : otherwise;
}

// As the driver does: GPUs that CUDA_VISIBLE_DEVICES names, up to the first that does not exist.
int visible(int count) {
    const char* value = getenv("CUDA_VISIBLE_DEVICES");
    if (!value) return count;
    int found = 0;
    for (const char* at = value; *at; at += *at == ',') {
        char* end;
        long index = strtol(at, &end, 10);
        if (end == at || index < 0 || index >= count) break;
        ++found;
        at = end;
    }
    return found;
}

Settings read_settings() {
    Settings s;
    s.memory = strtoull(text("FAKE_GPU_MEMORY", "4294967296"), nullptr, 10);
    s.context = strtoull(text("FAKE_GPU_CONTEXT", "419430400"), nullptr, 10);
    s.others = strtoull(text("FAKE_GPU_OTHERS", "0"), nullptr, 10);
    s.installed = std::min(atoi(text("FAKE_GPU_COUNT", "1")), MAX_GPUS);
    s.count = visible(s.installed);
    s.capability = atoi(text("FAKE_GPU_CAPABILITY", "75"));
    s.multiprocessors = atoi(text("FAKE_GPU_MULTIPROCESSORS", "16"));
    s.driver = atoi(text("FAKE_GPU_DRIVER", "99000"));
    s.no_kernel_image = getenv("FAKE_GPU_NO_KERNEL_IMAGE") != nullptr;
    s.log = getenv("FAKE_GPU_LOG") != nullptr;
    s.fail_from = s.fail_to = 0;
    sscanf(text("FAKE_GPU_FAIL_AT", "0-0"), "%ld-%ld", &s.fail_from, &s.fail_to);
    s.copy_speed = atof(text("FAKE_GPU_COPY_SPEED", "0"));
    s.name = text("FAKE_GPU_NAME", "Fake GPU");
    return s;
}

// A machine with a GPU has a real driver, which this library would hide from the programs that it is loaded into.
__attribute__((constructor)) void refuse_real_driver() {
    std::vector<std::string> signs = {"/dev/nvidiactl", "/dev/nvidia0", "/proc/driver/nvidia/version", "/dev/dxg"};
    if (const char* more = getenv("FAKE_GPU_ALSO_REFUSE")) signs.push_back(more);  // for the test of this refusal
    for (const std::string& sign : signs) {
        if (access(sign.c_str(), F_OK) != 0) continue;
        fprintf(stderr, "fake GPU: this machine has a real GPU driver (%s), so the fake one does not start.\n",
                sign.c_str());
        _exit(2);
    }
}

uintptr_t round_up(uintptr_t value, size_t to) { return (value + to - 1) / to * to; }

std::map<uintptr_t, size_t>::iterator block_at(std::map<uintptr_t, size_t>& blocks, const void* address) {
    auto block = blocks.upper_bound((uintptr_t)address);
    if (block == blocks.begin()) return blocks.end();
    --block;
    return (uintptr_t)address < block->first + block->second ? block : blocks.end();
}

void count(std::atomic<long>& now, std::atomic<long>& peak, long bytes) {
    now += bytes;
    peak = std::max(peak.load(), now.load());
}

// A page that was never written is zero: reading it costs no memory, writing zeros to it would.
bool is_zero(const char* from, size_t bytes) {
    return bytes == 0 || (*from == 0 && memcmp(from, from + 1, bytes - 1) == 0);
}

Settings& changeable_settings() {
    static Settings settings = read_settings();
    return settings;
}

}  // namespace

const Settings& settings() { return changeable_settings(); }

bool usable() {
    pid_t nobody = 0, self = getpid();
    return owner.compare_exchange_strong(nobody, self) || nobody == self;
}

bool take(int device, size_t bytes) {
    const Settings& s = settings();
    long call = ++counters.allocations;
    std::lock_guard<std::mutex> guard(mutex);
    Memory& gpu = gpus[device];
    bool fails = (call >= s.fail_from && call <= s.fail_to) || gpu.used + s.context + s.others + bytes > s.memory;
    if (s.log)
        fprintf(stderr, "fake GPU: allocation %ld, %zu bytes, %zu in use%s\n", call, bytes, gpu.used,
                fails ? ": out of memory" : "");
    if (fails) {
        ++counters.failed;
        return false;
    }
    gpu.used += bytes;
    count(counters.used, counters.peak, (long)bytes);
    return true;
}

void give_back(int device, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    gpus[device].used -= bytes;
    counters.used -= (long)bytes;
}

void* map(int device, size_t bytes, bool accessible) {
    std::lock_guard<std::mutex> guard(mutex);
    uintptr_t& next = gpus[device].next;
    size_t step = bytes < LARGE / 2 ? PAGE : LARGE;
    uintptr_t offset = round_up(next, step);
    if (offset + bytes > SPAN) return nullptr;
    void* wanted = (void*)(BASE + device * SPAN + offset);
    int access = accessible ? PROT_READ | PROT_WRITE : PROT_NONE;
    void* address =
        mmap(wanted, bytes, access, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED_NOREPLACE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    next = offset + round_up(bytes, step);
    return address;
}

void unmap(void* address, size_t bytes) { munmap(address, bytes); }

void* allocate(int device, size_t bytes) {
    if (!take(device, bytes)) return nullptr;
    void* address = map(device, bytes, true);
    if (!address) {
        give_back(device, bytes);
        return nullptr;
    }
    std::lock_guard<std::mutex> guard(mutex);
    gpus[device].blocks[(uintptr_t)address] = bytes;
    return address;
}

void release(void* address) {
    int device = device_of(address);
    if (device < 0) return;
    size_t bytes;
    {
        std::lock_guard<std::mutex> guard(mutex);
        auto block = gpus[device].blocks.find((uintptr_t)address);
        if (block == gpus[device].blocks.end()) return;
        bytes = block->second;
        gpus[device].blocks.erase(block);
    }
    unmap(address, bytes);
    give_back(device, bytes);
}

int device_of(const void* address) {
    uintptr_t at = (uintptr_t)address;
    return at >= BASE && at < BASE + MAX_GPUS * SPAN ? (int)((at - BASE) / SPAN) : -1;
}

size_t free_memory(int device) {
    const Settings& s = settings();
    std::lock_guard<std::mutex> guard(mutex);
    size_t held = gpus[device].used + s.context + s.others;
    return held < s.memory ? s.memory - held : 0;
}

void* pin(size_t bytes) {
    // Populated, as a driver does: pinned memory is resident.
    void* address =
        mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    if (address == MAP_FAILED) return nullptr;
    std::lock_guard<std::mutex> guard(mutex);
    pinned[(uintptr_t)address] = bytes;
    count(counters.pinned, counters.pinned_peak, (long)bytes);
    return address;
}

void unpin(void* address) {
    std::lock_guard<std::mutex> guard(mutex);
    auto block = pinned.find((uintptr_t)address);
    if (block == pinned.end()) {
        registered.erase((uintptr_t)address);
        return;
    }
    munmap(address, block->second);
    counters.pinned -= (long)block->second;
    pinned.erase(block);
}

void register_pinned(void* address, size_t bytes) {
    std::lock_guard<std::mutex> guard(mutex);
    registered[(uintptr_t)address] = bytes;
}

bool is_pinned(const void* address) {
    std::lock_guard<std::mutex> guard(mutex);
    return block_at(pinned, address) != pinned.end() || block_at(registered, address) != registered.end();
}

void copy(void* to, const void* from, size_t bytes) {
    char* target = (char*)to;
    const char* source = (const char*)from;
    if (device_of(to) < 0 || (target < source + bytes && source < target + bytes)) {
        memmove(to, from, bytes);
        return;
    }
    for (size_t at = 0, length; at < bytes; at += length) {
        length = std::min(bytes - at, PAGE - ((uintptr_t)(target + at) & (PAGE - 1)));
        if (!(is_zero(source + at, length) && is_zero(target + at, length)))
            memcpy(target + at, source + at, length);
    }
}

void fill(void* to, int value, size_t bytes) {
    char* start = (char*)to;
    char* from = (char*)round_up((uintptr_t)start, PAGE);
    char* end = (char*)((uintptr_t)(start + bytes) & ~(PAGE - 1));
    if (value != 0 || device_of(to) < 0 || end <= from) {
        memset(to, value, bytes);
        return;
    }
    memset(start, 0, (size_t)(from - start));
    madvise(from, (size_t)(end - from), MADV_DONTNEED);  // reads as zeros again, and the host gets its memory back
    memset(end, 0, (size_t)(start + bytes - end));
}

void launched() { ++counters.launches; }

}  // namespace fake_gpu

// For `fake_gpu.counters()`.
EXPORT void fake_gpu_counters(long* values) {
    using namespace fake_gpu;
    std::atomic<long>* all[] = {&counters.used,     &counters.peak,        &counters.pinned, &counters.pinned_peak,
                                &counters.launches, &counters.allocations, &counters.failed};
    for (auto* counter : all) *values++ = counter->load();
}

// For `fake_gpu.fail_next()`.
EXPORT void fake_gpu_fail_next(long first, long last) {
    using namespace fake_gpu;
    std::lock_guard<std::mutex> guard(mutex);
    changeable_settings().fail_from = counters.allocations + first;
    changeable_settings().fail_to = counters.allocations + last;
}
