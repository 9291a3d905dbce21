// libcuda: the driver's functions that torch uses, most of all virtual memory, on which expandable segments are built.
//
// Functions that are not here are generated: they answer "not supported" (symbols.py).
#include <cuda.h>
#include <sys/mman.h>

#include <cstdio>
#include <map>
#include <mutex>

#include "gpu.hpp"

using namespace fake_gpu;

namespace {

struct Physical {
    int device;
    size_t bytes;
};

std::mutex mutex;
std::map<CUmemGenericAllocationHandle, Physical> physical;
CUmemGenericAllocationHandle next_handle = 1;

CUcontext context() { return (CUcontext)0x20; }

CUresult state() {
    if (!usable()) return CUDA_ERROR_NOT_INITIALIZED;
    return settings().count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

}  // namespace

EXPORT CUresult cuInit(unsigned) { return state(); }

EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = settings().driver;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = settings().count;
    return state();
}

EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = ordinal;
    return ordinal < settings().count ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

EXPORT CUresult cuDeviceGetName(char* name, int length, CUdevice) {
    snprintf(name, (size_t)length, "%s", settings().name.c_str());
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceTotalMem_v2(size_t* bytes, CUdevice) {
    *bytes = settings().memory;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDeviceGetAttribute(int* value, CUdevice_attribute attribute, CUdevice) {
    switch (attribute) {
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR: *value = settings().capability / 10; break;
        case CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR: *value = settings().capability % 10; break;
        case CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT: *value = settings().multiprocessors; break;
        case CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED: *value = 1; break;
        case CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED: *value = 1; break;
        default: *value = 0;
    }
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxGetCurrent(CUcontext* current) {
    *current = context();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuCtxSetCurrent(CUcontext) { return CUDA_SUCCESS; }

EXPORT CUresult cuDevicePrimaryCtxGetState(CUdevice, unsigned* flags, int* active) {
    *flags = 0;
    *active = 1;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* primary, CUdevice) {
    *primary = context();
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorString(CUresult error, const char** text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "out of memory"
            : error == CUDA_SUCCESS           ? "no error"
                                              : "unknown error";
    return CUDA_SUCCESS;
}

EXPORT CUresult cuGetErrorName(CUresult error, const char** text) {
    *text = error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
            : error == CUDA_SUCCESS           ? "CUDA_SUCCESS"
                                              : "CUDA_ERROR_UNKNOWN";
    return CUDA_SUCCESS;
}

// ---- Virtual memory: addresses are reserved, physical memory is created (and counted) and mapped to them

EXPORT CUresult cuMemGetAllocationGranularity(size_t* granularity, const CUmemAllocationProp*,
                                              CUmemAllocationGranularity_flags) {
    *granularity = 2 << 20;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemAddressReserve(CUdeviceptr* address, size_t bytes, size_t, CUdeviceptr, unsigned long long) {
    // The call names no GPU, so all reservations are in the first one's range: what counts is where memory is created.
    void* reserved = map(0, bytes, false);
    *address = (CUdeviceptr)reserved;
    return reserved ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

EXPORT CUresult cuMemAddressFree(CUdeviceptr address, size_t bytes) {
    unmap((void*)address, bytes);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemCreate(CUmemGenericAllocationHandle* handle, size_t bytes, const CUmemAllocationProp* properties,
                            unsigned long long) {
    int device = properties->location.id;
    if (!take(device, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
    std::lock_guard<std::mutex> guard(mutex);
    *handle = next_handle++;
    physical[*handle] = {device, bytes};
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
    std::lock_guard<std::mutex> guard(mutex);
    auto found = physical.find(handle);
    if (found == physical.end()) return CUDA_ERROR_INVALID_VALUE;
    give_back(found->second.device, found->second.bytes);
    physical.erase(found);
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemMap(CUdeviceptr, size_t, size_t, CUmemGenericAllocationHandle, unsigned long long) {
    return CUDA_SUCCESS;
}

EXPORT CUresult cuMemSetAccess(CUdeviceptr address, size_t bytes, const CUmemAccessDesc*, size_t) {
    return mprotect((void*)address, bytes, PROT_READ | PROT_WRITE) == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

EXPORT CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
    fill((void*)address, 0, bytes);
    mprotect((void*)address, bytes, PROT_NONE);
    return CUDA_SUCCESS;
}

// ---- Kernels that torch compiles at run time

EXPORT CUresult cuModuleLoadData(CUmodule* module, const void*) {
    *module = (CUmodule)0x30;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuModuleGetFunction(CUfunction* function, CUmodule, const char*) {
    *function = (CUfunction)0x40;
    return CUDA_SUCCESS;
}

EXPORT CUresult cuLaunchKernel(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                               CUstream, void**, void**) {
    if (settings().no_kernel_image) return CUDA_ERROR_NO_BINARY_FOR_GPU;
    launched();
    return CUDA_SUCCESS;
}
