// libcudart: the CUDA runtime on a fake GPU. Memory is counted, copies are made, kernel launches are dropped.
//
// Functions that are not here are generated: they answer "not supported" (symbols.py).
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <cstdio>
#include <cstring>
#include <map>
#include <string>

#include "clock.hpp"
#include "gpu.hpp"

using namespace fake_gpu;

namespace {

thread_local cudaError_t last = cudaSuccess;
thread_local int current = 0;

cudaError_t answer(cudaError_t error) {
    if (error != cudaSuccess) last = error;
    return error;
}

// Errors that every call gives: a fork of a process that uses CUDA, no GPU, a driver older than the runtime.
cudaError_t state() {
    if (settings().driver < CUDART_VERSION / 1000 * 1000) return cudaErrorInsufficientDriver;
    if (!usable()) return cudaErrorInitializationError;
    return settings().count ? cudaSuccess : cudaErrorNoDevice;
}

cudaError_t launch() {
    if (cudaError_t error = state()) return answer(error);
    if (settings().no_kernel_image) return answer(cudaErrorNoKernelImageForDevice);
    launched();
    return cudaSuccess;
}

// Sizes of the compute capabilities, from the CUDA programming guide's table.
struct Limits {
    int threads, shared, shared_optin, blocks;
};

Limits limits() {
    int capability = settings().capability;
    if (capability < 75) return {2048, 96 << 10, 48 << 10, 32};
    if (capability < 80) return {1024, 64 << 10, 64 << 10, 16};
    if (capability == 80) return {2048, 164 << 10, 163 << 10, 32};
    if (capability < 90) return {1536, 100 << 10, 99 << 10, 16};
    return {2048, 228 << 10, 227 << 10, 32};
}

bool is_host_copy(const void* to, const void* from) { return device_of(to) < 0 || device_of(from) < 0; }

bool is_pageable(const void* address) { return device_of(address) < 0 && !is_pinned(address); }

// The bytes are there at once; the stream is busy for as long as the copy would take.
cudaError_t copy_on(void* to, const void* from, size_t bytes, cudaStream_t stream) {
    if (cudaError_t error = state()) return answer(error);
    copy(to, from, bytes);
    if (!is_host_copy(to, from)) return cudaSuccess;
    occupy(stream, bytes);
    if (is_pageable(to) || is_pageable(from)) wait_for_stream(stream);
    return cudaSuccess;
}

}  // namespace

#define REQUIRE_GPU                             \
    if (cudaError_t error = state()) return answer(error)

// ---- Devices

EXPORT cudaError_t cudaGetDeviceCount(int* count) {
    *count = 0;
    REQUIRE_GPU;
    *count = settings().count;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDevice(int* device) {
    REQUIRE_GPU;
    *device = current;
    return cudaSuccess;
}

EXPORT cudaError_t cudaSetDevice(int device) {
    REQUIRE_GPU;
    if (device < 0 || device >= settings().count) return answer(cudaErrorInvalidDevice);
    current = device;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetDeviceProperties(cudaDeviceProp* p, int device) {
    REQUIRE_GPU;
    if (device < 0 || device >= settings().count) return answer(cudaErrorInvalidDevice);
    Limits limit = limits();
    memset(p, 0, sizeof *p);
    snprintf(p->name, sizeof p->name, "%s", settings().name.c_str());
    memcpy(p->uuid.bytes, "fake-gpu", 8);
    p->uuid.bytes[15] = (char)device;
    p->totalGlobalMem = settings().memory;
    p->major = settings().capability / 10;
    p->minor = settings().capability % 10;
    p->multiProcessorCount = settings().multiprocessors;
    p->maxThreadsPerMultiProcessor = limit.threads;
    p->sharedMemPerMultiprocessor = (size_t)limit.shared;
    p->sharedMemPerBlockOptin = (size_t)limit.shared_optin;
    p->maxBlocksPerMultiProcessor = limit.blocks;
    p->sharedMemPerBlock = 48 << 10;
    p->regsPerBlock = p->regsPerMultiprocessor = 64 << 10;
    p->totalConstMem = 64 << 10;
    p->warpSize = 32;
    p->maxThreadsPerBlock = p->maxThreadsDim[0] = p->maxThreadsDim[1] = 1024;
    p->maxThreadsDim[2] = 64;
    p->maxGridSize[0] = 2147483647;
    p->maxGridSize[1] = p->maxGridSize[2] = 65535;
    p->textureAlignment = 512;
    p->l2CacheSize = 2 << 20;
    p->memoryBusWidth = 128;
    p->pciBusID = device + 1;
    p->asyncEngineCount = 2;
    p->unifiedAddressing = p->canMapHostMemory = p->concurrentKernels = p->managedMemory = 1;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    cudaDeviceProp p;
    if (cudaError_t error = cudaGetDeviceProperties(&p, device)) return error;
    switch (attribute) {
        case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
        case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
        case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
        case cudaDevAttrMaxThreadsPerMultiProcessor: *value = p.maxThreadsPerMultiProcessor; break;
        case cudaDevAttrMaxThreadsPerBlock: *value = p.maxThreadsPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)p.sharedMemPerBlock; break;
        case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)p.sharedMemPerBlockOptin; break;
        case cudaDevAttrMaxSharedMemoryPerMultiprocessor: *value = (int)p.sharedMemPerMultiprocessor; break;
        case cudaDevAttrMaxRegistersPerBlock: *value = p.regsPerBlock; break;
        case cudaDevAttrMaxRegistersPerMultiprocessor: *value = p.regsPerMultiprocessor; break;
        case cudaDevAttrMaxBlocksPerMultiprocessor: *value = p.maxBlocksPerMultiProcessor; break;
        case cudaDevAttrWarpSize: *value = p.warpSize; break;
        case cudaDevAttrMaxGridDimX: *value = p.maxGridSize[0]; break;
        case cudaDevAttrMaxGridDimY:
        case cudaDevAttrMaxGridDimZ: *value = p.maxGridSize[1]; break;
        case cudaDevAttrL2CacheSize: *value = p.l2CacheSize; break;
        case cudaDevAttrUnifiedAddressing:
        case cudaDevAttrCanMapHostMemory:
        case cudaDevAttrConcurrentKernels: *value = 1; break;
        default: *value = 0;
    }
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetPCIBusId(char* id, int length, int device) {
    snprintf(id, (size_t)length, "0000:%02d:00.0", device + 1);
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    *least = 0;
    *greatest = -5;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceCanAccessPeer(int* can, int, int) {
    *can = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceSynchronize() {
    REQUIRE_GPU;
    wait_for_all_streams();
    return cudaSuccess;
}

EXPORT cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit) {
    *value = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaDriverGetVersion(int* version) {
    *version = settings().driver;
    return cudaSuccess;
}

EXPORT cudaError_t cudaRuntimeGetVersion(int* version) {
    *version = CUDART_VERSION;
    return cudaSuccess;
}

// ---- Memory

EXPORT cudaError_t cudaMalloc(void** address, size_t bytes) {
    *address = nullptr;
    REQUIRE_GPU;
    if (bytes == 0) return cudaSuccess;  // torch asks for it where it does not cache
    *address = allocate(current, bytes);
    return *address ? cudaSuccess : answer(cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaFree(void* address) {
    REQUIRE_GPU;
    if (address) release(address);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMallocAsync(void** address, size_t bytes, cudaStream_t) { return cudaMalloc(address, bytes); }
EXPORT cudaError_t cudaFreeAsync(void* address, cudaStream_t) { return cudaFree(address); }

EXPORT cudaError_t cudaMemGetInfo(size_t* free, size_t* total) {
    REQUIRE_GPU;
    *free = free_memory(current);
    *total = settings().memory;
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostAlloc(void** address, size_t bytes, unsigned) {
    REQUIRE_GPU;
    *address = pin(bytes);
    return *address ? cudaSuccess : answer(cudaErrorMemoryAllocation);
}

EXPORT cudaError_t cudaMallocHost(void** address, size_t bytes) { return cudaHostAlloc(address, bytes, 0); }

EXPORT cudaError_t cudaMallocManaged(void** address, size_t bytes, unsigned) { return cudaHostAlloc(address, bytes, 0); }

EXPORT cudaError_t cudaFreeHost(void* address) {
    unpin(address);
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostRegister(void* address, size_t bytes, unsigned) {
    REQUIRE_GPU;
    register_pinned(address, bytes);
    return cudaSuccess;
}

EXPORT cudaError_t cudaHostUnregister(void* address) {
    unpin(address);
    return cudaSuccess;
}

EXPORT cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* a, const void* address) {
    REQUIRE_GPU;
    memset(a, 0, sizeof *a);
    int device = device_of(address);
    a->device = device < 0 ? 0 : device;
    a->type = device >= 0 ? cudaMemoryTypeDevice : is_pinned(address) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    a->devicePointer = a->type == cudaMemoryTypeUnregistered ? nullptr : (void*)address;
    a->hostPointer = device >= 0 ? nullptr : (void*)address;
    return cudaSuccess;
}

// ---- Copies

EXPORT cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind) {
    cudaError_t error = copy_on(to, from, bytes, nullptr);
    if (!error) wait_for_stream(nullptr);
    return error;
}

EXPORT cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind, cudaStream_t stream) {
    return copy_on(to, from, bytes, stream);
}

EXPORT cudaError_t cudaMemcpyPeerAsync(void* to, int, const void* from, int, size_t bytes, cudaStream_t stream) {
    return copy_on(to, from, bytes, stream);
}

EXPORT cudaError_t cudaMemcpy2DAsync(void* to, size_t to_pitch, const void* from, size_t from_pitch, size_t width,
                                     size_t height, cudaMemcpyKind, cudaStream_t stream) {
    for (size_t row = 0; row < height; ++row)
        if (cudaError_t error =
                copy_on((char*)to + row * to_pitch, (const char*)from + row * from_pitch, width, stream))
            return error;
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemcpyToSymbol(const void*, const void*, size_t, size_t, cudaMemcpyKind) { return cudaSuccess; }

EXPORT cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t) {
    REQUIRE_GPU;
    fill(to, value, bytes);
    return cudaSuccess;
}

EXPORT cudaError_t cudaMemset(void* to, int value, size_t bytes) { return cudaMemsetAsync(to, value, bytes, nullptr); }

EXPORT cudaError_t cudaGetSymbolAddress(void** address, const void*) {
    static char symbol[64 << 10];  // read by kernels only, which do not run
    *address = symbol;
    return cudaSuccess;
}

// ---- Streams and events

EXPORT cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned, int) {
    REQUIRE_GPU;
    *stream = (cudaStream_t)new_handle();
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
    return cudaStreamCreateWithPriority(stream, flags, 0);
}

EXPORT cudaError_t cudaStreamCreate(cudaStream_t* stream) { return cudaStreamCreateWithPriority(stream, 0, 0); }

EXPORT cudaError_t cudaStreamDestroy(cudaStream_t) { return cudaSuccess; }

EXPORT cudaError_t cudaStreamGetPriority(cudaStream_t, int* priority) {
    *priority = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamQuery(cudaStream_t stream) {
    REQUIRE_GPU;
    return is_idle(stream) ? cudaSuccess : cudaErrorNotReady;
}

EXPORT cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
    REQUIRE_GPU;
    wait_for_stream(stream);
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
    stream_waits_for(stream, event);
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamIsCapturing(cudaStream_t, cudaStreamCaptureStatus* status) {
    REQUIRE_GPU;
    *status = cudaStreamCaptureStatusNone;
    return cudaSuccess;
}

EXPORT cudaError_t cudaStreamGetCaptureInfo(cudaStream_t, cudaStreamCaptureStatus* status, unsigned long long* id,
                                            cudaGraph_t*, const cudaGraphNode_t**, const cudaGraphEdgeData**, size_t*) {
    *status = cudaStreamCaptureStatusNone;
    if (id) *id = 0;
    return cudaSuccess;
}

EXPORT cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode*) { return cudaSuccess; }

EXPORT cudaError_t cudaStreamAddCallback(cudaStream_t stream, cudaStreamCallback_t function, void* data, unsigned) {
    function(stream, cudaSuccess, data);
    return cudaSuccess;
}

EXPORT cudaError_t cudaLaunchHostFunc(cudaStream_t, cudaHostFn_t function, void* data) {
    function(data);
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
    REQUIRE_GPU;
    *event = (cudaEvent_t)new_handle();
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventCreate(cudaEvent_t* event) { return cudaEventCreateWithFlags(event, 0); }

EXPORT cudaError_t cudaEventDestroy(cudaEvent_t event) {
    forget_event(event);
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned) {
    REQUIRE_GPU;
    record(event, stream);
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
    return cudaEventRecordWithFlags(event, stream, 0);
}

EXPORT cudaError_t cudaEventQuery(cudaEvent_t event) {
    REQUIRE_GPU;
    return has_passed(event) ? cudaSuccess : cudaErrorNotReady;
}

EXPORT cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    wait_for_event(event);
    return cudaSuccess;
}

EXPORT cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
    *milliseconds = (float)(1e3 * seconds_between(start, end));
    return cudaSuccess;
}

// ---- Kernels: registered and launched, never run

EXPORT cudaError_t cudaLaunchKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) { return launch(); }
EXPORT cudaError_t __cudaLaunchKernel(cudaKernel_t, dim3, dim3, void**, size_t, cudaStream_t) { return launch(); }
EXPORT cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t*, const void*, void**) { return launch(); }
EXPORT cudaError_t cudaLaunchCooperativeKernel(const void*, dim3, dim3, void**, size_t, cudaStream_t) {
    return launch();
}

namespace {
thread_local struct {
    dim3 grid, block;
    size_t shared;
    void* stream;
} call;
}  // namespace

EXPORT unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared, void* stream) {
    call = {grid, block, shared, stream};
    return 0;
}

EXPORT cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared, void* stream) {
    *grid = call.grid;
    *block = call.block;
    *shared = call.shared;
    *(void**)stream = call.stream;
    return cudaSuccess;
}

EXPORT cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* function) {
    *kernel = (cudaKernel_t)function;
    return cudaSuccess;
}

EXPORT cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* symbol) {
    *function = (cudaFunction_t)symbol;
    return cudaSuccess;
}

EXPORT char __cudaInitModule(void**) { return 1; }

EXPORT void** __cudaRegisterFatBinary(void*) {
    static void* handle[2];
    return handle;
}

EXPORT void __cudaRegisterFatBinaryEnd(void**) {}
EXPORT void __cudaUnregisterFatBinary(void**) {}
EXPORT void __cudaRegisterFunction(void**, const char*, char*, const char*, int, void*, void*, void*, void*, int*) {}
EXPORT void __cudaRegisterVar(void**, char*, char*, const char*, int, size_t, int, int) {}
EXPORT void __cudaRegisterManagedVar(void**, void**, char*, const char*, int, size_t, int, int) {}

EXPORT cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* a, const void*) {
    if (settings().no_kernel_image) return answer(cudaErrorNoKernelImageForDevice);
    memset(a, 0, sizeof *a);
    a->maxThreadsPerBlock = 1024;
    a->numRegs = 32;
    a->ptxVersion = a->binaryVersion = settings().capability;
    a->maxDynamicSharedSizeBytes = 48 << 10;
    return cudaSuccess;
}

EXPORT cudaError_t cudaFuncSetAttribute(const void*, cudaFuncAttribute, int) { return cudaSuccess; }
EXPORT cudaError_t cudaFuncSetCacheConfig(const void*, cudaFuncCache) { return cudaSuccess; }
EXPORT cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t, cudaFuncAttribute, int, int) { return cudaSuccess; }

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void*, int, size_t) {
    *blocks = 2;
    return cudaSuccess;
}

EXPORT cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, const void*, int, size_t,
                                                                         unsigned) {
    *blocks = 2;
    return cudaSuccess;
}

EXPORT cudaError_t cudaProfilerStart() { return cudaSuccess; }
EXPORT cudaError_t cudaProfilerStop() { return cudaSuccess; }

// ---- Errors, in the words of the real runtime

EXPORT cudaError_t cudaGetLastError() {
    cudaError_t error = last;
    last = cudaSuccess;
    return error;
}

EXPORT cudaError_t cudaPeekAtLastError() { return last; }

namespace {
struct Words {
    const char *name, *text;
};

const std::map<cudaError_t, Words> WORDS = {
    {cudaSuccess, {"cudaSuccess", "no error"}},
    {cudaErrorMemoryAllocation, {"cudaErrorMemoryAllocation", "out of memory"}},
    {cudaErrorInitializationError, {"cudaErrorInitializationError", "initialization error"}},
    {cudaErrorInsufficientDriver,
     {"cudaErrorInsufficientDriver", "CUDA driver version is insufficient for CUDA runtime version"}},
    {cudaErrorNoDevice, {"cudaErrorNoDevice", "no CUDA-capable device is detected"}},
    {cudaErrorInvalidDevice, {"cudaErrorInvalidDevice", "invalid device ordinal"}},
    {cudaErrorNoKernelImageForDevice,
     {"cudaErrorNoKernelImageForDevice", "no kernel image is available for execution on the device"}},
    {cudaErrorNotReady, {"cudaErrorNotReady", "device not ready"}},
    {cudaErrorNotSupported, {"cudaErrorNotSupported", "operation not supported"}},
};

Words words(cudaError_t error) {
    auto found = WORDS.find(error);
    return found == WORDS.end() ? Words{"cudaErrorUnknown", "unknown error"} : found->second;
}
}  // namespace

EXPORT const char* cudaGetErrorName(cudaError_t error) { return words(error).name; }
EXPORT const char* cudaGetErrorString(cudaError_t error) { return words(error).text; }

// ---- The driver's functions, which torch looks up by name: driver.cpp has them

EXPORT cudaError_t cudaGetDriverEntryPointByVersion(const char* name, void** function, unsigned, unsigned long long,
                                                    cudaDriverEntryPointQueryResult* result) {
    *function = dlsym(RTLD_DEFAULT, name);
    if (!*function) *function = dlsym(RTLD_DEFAULT, (std::string(name) + "_v2").c_str());  // as cuda.h renames it
    if (result) *result = *function ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
    return cudaSuccess;
}
