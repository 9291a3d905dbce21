// libcublas: handles and settings. Every other function is generated and succeeds without doing anything (symbols.py).
// The headers of half precision need further headers that no wheel has, and only pointers to it are used.
#define __CUDA_FP16_H__
#define __CUDA_BF16_H__
struct __half;
struct __nv_bfloat16;
#include <cublas_v2.h>

#include <atomic>

#define EXPORT extern "C" __attribute__((visibility("default")))

EXPORT cublasStatus_t cublasCreate_v2(cublasHandle_t* handle) {
    static std::atomic<long> next{0x1000};
    *handle = (cublasHandle_t)(next += 16);  // torch keeps one workspace per handle and stream
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasGetVersion_v2(cublasHandle_t, int* version) {
    *version = CUBLAS_VERSION;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasGetProperty(libraryPropertyType type, int* value) {
    *value = type == MAJOR_VERSION ? CUBLAS_VER_MAJOR : type == MINOR_VERSION ? CUBLAS_VER_MINOR : CUBLAS_VER_PATCH;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasGetPointerMode_v2(cublasHandle_t, cublasPointerMode_t* mode) {
    *mode = CUBLAS_POINTER_MODE_HOST;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT cublasStatus_t cublasGetMathMode(cublasHandle_t, cublasMath_t* mode) {
    *mode = CUBLAS_DEFAULT_MATH;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORT const char* cublasGetStatusString(cublasStatus_t) { return "CUBLAS_STATUS_SUCCESS"; }
