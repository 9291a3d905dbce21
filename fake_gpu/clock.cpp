// Streams and events as points in time: a copy occupies its stream for bytes / speed, an event passes when all that its
// stream had to do is done.
#include "clock.hpp"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <map>
#include <mutex>
#include <thread>

#include "gpu.hpp"

namespace fake_gpu {
namespace {

using Clock = std::chrono::steady_clock;
using Time = Clock::time_point;

std::mutex mutex;
std::map<const void*, Time> streams, events;
uintptr_t handles = 0x1000;

Time at(std::map<const void*, Time>& times, const void* key) {
    std::lock_guard<std::mutex> guard(mutex);
    auto found = times.find(key);
    return found == times.end() ? Time{} : found->second;
}

}  // namespace

void* new_handle() {
    std::lock_guard<std::mutex> guard(mutex);
    return (void*)(handles += 16);
}

void occupy(const void* stream, size_t bytes) {
    double speed = settings().copy_speed;
    if (speed <= 0) return;
    std::lock_guard<std::mutex> guard(mutex);
    auto duration = std::chrono::duration<double>((double)bytes / speed);
    streams[stream] = std::max(streams[stream], Clock::now()) + std::chrono::duration_cast<Clock::duration>(duration);
}

bool is_idle(const void* stream) { return at(streams, stream) <= Clock::now(); }

void wait_for_stream(const void* stream) { std::this_thread::sleep_until(at(streams, stream)); }

void wait_for_all_streams() {
    Time last{};
    {
        std::lock_guard<std::mutex> guard(mutex);
        for (const auto& stream : streams) last = std::max(last, stream.second);
    }
    std::this_thread::sleep_until(last);
}

void stream_waits_for(const void* stream, const void* event) {
    if (settings().copy_speed <= 0) return;
    Time passes = at(events, event);
    std::lock_guard<std::mutex> guard(mutex);
    streams[stream] = std::max(streams[stream], passes);
}

void record(const void* event, const void* stream) {
    Time done = std::max(at(streams, stream), Clock::now());
    std::lock_guard<std::mutex> guard(mutex);
    events[event] = done;
}

bool has_passed(const void* event) { return at(events, event) <= Clock::now(); }

void wait_for_event(const void* event) { std::this_thread::sleep_until(at(events, event)); }

void forget_event(const void* event) {
    std::lock_guard<std::mutex> guard(mutex);
    events.erase(event);
}

double seconds_between(const void* start, const void* end) {
    return std::chrono::duration<double>(at(events, end) - at(events, start)).count();
}

}  // namespace fake_gpu
