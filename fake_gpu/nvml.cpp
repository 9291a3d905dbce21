// libnvidia-ml: what torch asks the management library for, such as the processes in its out-of-memory message. No wheel
// has its header, so the types are written here. Nothing else of it exists.
#include <unistd.h>

#include <cstdio>

#include "gpu.hpp"

using namespace fake_gpu;

namespace {

enum Result { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_SUPPORTED = 3, INSUFFICIENT_SIZE = 7 };
using Device = long;  // the index plus 1: a handle is not null

struct Process {  // nvmlProcessInfo_v1_t
    unsigned pid;
    unsigned long long memory;
};

struct Memory {  // nvmlMemory_t
    unsigned long long total, free, used;
};

struct Fabric {  // nvmlGpuFabricInfoV_t, up to the state
    unsigned version;
    unsigned char cluster[16];
    Result status;
    unsigned clique;
    unsigned char state;
};

constexpr unsigned ANOTHER_PROCESS = 1;

}  // namespace

EXPORT Result nvmlInit_v2() { return SUCCESS; }
EXPORT Result nvmlInit() { return SUCCESS; }
EXPORT Result nvmlShutdown() { return SUCCESS; }

EXPORT Result nvmlSystemGetCudaDriverVersion_v2(int* version) {
    *version = settings().driver;
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetCount_v2(unsigned* count) {
    *count = (unsigned)settings().installed;  // CUDA_VISIBLE_DEVICES does not count here
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetHandleByIndex_v2(unsigned index, Device* device) {
    *device = (Device)index + 1;
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetHandleByPciBusId_v2(const char* id, Device* device) {
    unsigned domain, bus;
    if (sscanf(id, "%x:%x", &domain, &bus) != 2) return INVALID_ARGUMENT;
    *device = (Device)bus;  // the first GPU is on bus 1
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetMemoryInfo(Device device, Memory* memory) {
    size_t free = free_memory((int)device - 1), total = settings().memory;
    *memory = {total, free, total - free};
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetComputeRunningProcesses(Device device, unsigned* count, Process* processes) {
    size_t others = settings().others, used = settings().memory - free_memory((int)device - 1);
    unsigned found = others ? 2 : 1;
    bool fits = *count >= found;
    *count = found;
    if (!fits) return INSUFFICIENT_SIZE;
    processes[0] = {(unsigned)getpid(), used - others};
    if (others) processes[1] = {ANOTHER_PROCESS, others};
    return SUCCESS;
}

// Without NVSwitch, as in most machines: torch asks before it maps memory.
EXPORT Result nvmlDeviceGetGpuFabricInfoV(Device, Fabric* fabric) {
    fabric->status = SUCCESS;
    fabric->state = 0;  // NVML_GPU_FABRIC_STATE_NOT_SUPPORTED
    return SUCCESS;
}

EXPORT Result nvmlDeviceGetNvLinkRemoteDeviceType(Device, unsigned, int*) { return NOT_SUPPORTED; }
EXPORT Result nvmlDeviceGetNvLinkRemotePciInfo_v2(Device, unsigned, void*) { return NOT_SUPPORTED; }
