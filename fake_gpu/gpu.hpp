// What the fake CUDA libraries share: the settings of the fake GPUs, their memory, and the calls that are counted.
#pragma once

#include <cstddef>
#include <string>

#define EXPORT extern "C" __attribute__((visibility("default")))

namespace fake_gpu __attribute__((visibility("default"))) {  // libcuda uses it too

struct Settings {        // from the environment; `python -m fake_gpu` sets it
    size_t memory;       // bytes of each GPU
    size_t context;      // bytes that a CUDA context takes
    size_t others;       // bytes that other processes hold
    int installed;       // GPUs that there are
    int count;           // GPUs that this process sees
    int capability;      // 75 for 7.5
    int multiprocessors;
    int driver;          // CUDA version that the driver supports: 13000 for 13.0
    bool no_kernel_image;
    bool log;
    long fail_from, fail_to;  // these allocations fail, counted from 1
    double copy_speed;        // bytes per second between host and GPU; 0: no time at all
    std::string name;
};

const Settings& settings();

// False in a forked child whose parent has used CUDA: a real driver refuses to work there.
bool usable();

// Device memory. All functions are safe to call from several threads.
bool take(int device, size_t bytes);      // counts bytes as used; false: out of memory
void give_back(int device, size_t bytes);
void* map(int device, size_t bytes, bool accessible);  // address space that reads as zeros and takes no host memory yet
void unmap(void* address, size_t bytes);
void* allocate(int device, size_t bytes);  // take and map; nullptr: out of memory
void release(void* address);
int device_of(const void* address);        // -1: not device memory
size_t free_memory(int device);            // as the driver reports it

// Pinned host memory.
void* pin(size_t bytes);
void unpin(void* address);
void register_pinned(void* address, size_t bytes);
bool is_pinned(const void* address);

// Copies keep untouched memory untouched: a page that is zero at both ends is skipped.
void copy(void* to, const void* from, size_t bytes);
void fill(void* to, int value, size_t bytes);

void launched();  // counts a kernel launch

}  // namespace fake_gpu
