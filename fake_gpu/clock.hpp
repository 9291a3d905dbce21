// When the copies on a stream would be done, for `--copy-speed`.
#pragma once

#include <cstddef>

namespace fake_gpu {

void* new_handle();  // of a stream or an event

void occupy(const void* stream, size_t bytes);  // the stream copies that many bytes
bool is_idle(const void* stream);
void wait_for_stream(const void* stream);
void wait_for_all_streams();
void stream_waits_for(const void* stream, const void* event);

void record(const void* event, const void* stream);
bool has_passed(const void* event);
void wait_for_event(const void* event);
void forget_event(const void* event);
double seconds_between(const void* start, const void* end);

}  // namespace fake_gpu
