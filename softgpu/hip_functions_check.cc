// Compares the signatures in abi/hip/functions.def with HIP's own header at compile time. Generates
// no code. The header of HIP 5 is compared as far as HIP 6 has changed nothing.

#define STASIS_DRIVER_FUNCTION_TYPES_ONLY
#include "abi/hip/functions.h"
#include "hip_header.h"

namespace {

namespace ours = stasis::hip;

// Integers, enumerations and pointers are passed alike if they have the same size.
template <class T>
inline constexpr bool kScalar = std::is_integral_v<T> || std::is_enum_v<T> || std::is_pointer_v<T>;
template <class T>
concept Opaque = !requires { sizeof(T); } || std::is_void_v<T> || std::is_function_v<T>;

// True for structures that HIP 6 changed, if these are the headers of HIP 5.
template <class A, class B>
inline constexpr bool kChanged = false;
template <>
inline constexpr bool kChanged<ours::HIP_MEMCPY3D, ::HIP_MEMCPY3D> = HIP_VERSION_MAJOR < 6;

template <class A, class B>
constexpr bool SameData();

// Returns whether arguments or results of these two types have the same representation. Of two
// pointers, the types that they point to are compared.
template <class A, class B>
constexpr bool SameArgument() {
  if constexpr (std::is_void_v<A> || std::is_void_v<B>) {
    return std::is_void_v<A> && std::is_void_v<B>;
  } else if constexpr (std::is_pointer_v<A> && std::is_pointer_v<B>) {
    return SameData<std::remove_cv_t<std::remove_pointer_t<A>>,
                    std::remove_cv_t<std::remove_pointer_t<B>>>();
  } else if constexpr (kScalar<A> && kScalar<B>) {
    return sizeof(A) == sizeof(B);
  } else {
    return kChanged<A, B> || (std::is_class_v<A> && std::is_class_v<B> && sizeof(A) == sizeof(B));
  }
}
template <class A, class B>
constexpr bool SameData() {
  if constexpr (Opaque<A> || Opaque<B> || std::is_same_v<A, B>) {
    return true;
  } else {
    return SameArgument<A, B>();
  }
}

template <class A, class B>
struct SameSignature : std::false_type {};
template <class R, class... A, class S, class... B>
  requires(sizeof...(A) == sizeof...(B))
struct SameSignature<R(A...), S(B...)>
    : std::bool_constant<SameArgument<R, S>() && (SameArgument<A, B>() && ...)> {};

// True for a function with `count` arguments that are all integers or pointers.
template <class F, int count>
struct Scalars : std::false_type {};
template <class R, class... A, int count>
  requires(sizeof...(A) == count)
struct Scalars<R(A...), count>
    : std::bool_constant<kScalar<R> && sizeof(R) == sizeof(int) && (kScalar<A> && ...)> {};

template <int... i>
hipError_t (*Pointers(std::integer_sequence<int, i...>))(decltype((i, (void*)nullptr))...);
// A function with `count` pointers as arguments.
template <int count>
using WithPointers =
    std::remove_pointer_t<decltype(Pointers(std::make_integer_sequence<int, count>()))>;

}  // namespace

// A function that only the compiler declares, or that this version's headers do not have. Its type
// is taken from the table, so the comparison below cannot fail for it.
#define STASIS_UNDECLARED(symbol) extern "C" ours::fn::symbol symbol;
STASIS_UNDECLARED(__hipRegisterFatBinary)
STASIS_UNDECLARED(__hipUnregisterFatBinary)
STASIS_UNDECLARED(__hipRegisterFunction)
STASIS_UNDECLARED(__hipRegisterVar)
STASIS_UNDECLARED(__hipRegisterManagedVar)
// Declared in hip_ext.h, which is for C++ only.
STASIS_UNDECLARED(hipExtModuleLaunchKernel)
STASIS_UNDECLARED(hipHccModuleLaunchKernel)
#if HIP_VERSION_MAJOR >= 6
STASIS_UNDECLARED(hipGetDeviceProperties)
#else
STASIS_UNDECLARED(hipGetProcAddress)
STASIS_UNDECLARED(hipExtGetLastError)
STASIS_UNDECLARED(hipGetDevicePropertiesR0600)
STASIS_UNDECLARED(hipGetFuncBySymbol)
STASIS_UNDECLARED(hipEventRecordWithFlags)
#define STASIS_UNDECLARED_OTHER(symbol, count) extern "C" WithPointers<count> symbol;
STASIS_UNDECLARED_OTHER(hipChooseDeviceR0600, 2)
STASIS_UNDECLARED_OTHER(hipDrvGraphAddMemFreeNode, 5)
STASIS_UNDECLARED_OTHER(hipDrvGraphAddMemcpyNode, 6)
STASIS_UNDECLARED_OTHER(hipDrvGraphAddMemsetNode, 6)
STASIS_UNDECLARED_OTHER(hipDrvGraphExecMemcpyNodeSetParams, 4)
STASIS_UNDECLARED_OTHER(hipDrvGraphExecMemsetNodeSetParams, 4)
STASIS_UNDECLARED_OTHER(hipDrvGraphMemcpyNodeGetParams, 2)
STASIS_UNDECLARED_OTHER(hipDrvGraphMemcpyNodeSetParams, 2)
STASIS_UNDECLARED_OTHER(hipExternalMemoryGetMappedMipmappedArray, 3)
STASIS_UNDECLARED_OTHER(hipGraphAddBatchMemOpNode, 5)
STASIS_UNDECLARED_OTHER(hipGraphAddNode, 5)
STASIS_UNDECLARED_OTHER(hipGraphBatchMemOpNodeGetParams, 2)
STASIS_UNDECLARED_OTHER(hipGraphBatchMemOpNodeSetParams, 2)
STASIS_UNDECLARED_OTHER(hipGraphExecBatchMemOpNodeSetParams, 3)
STASIS_UNDECLARED_OTHER(hipGraphExecGetFlags, 2)
STASIS_UNDECLARED_OTHER(hipGraphExecNodeSetParams, 3)
STASIS_UNDECLARED_OTHER(hipGraphInstantiateWithParams, 3)
STASIS_UNDECLARED_OTHER(hipGraphNodeSetParams, 2)
STASIS_UNDECLARED_OTHER(hipLinkAddData, 8)
STASIS_UNDECLARED_OTHER(hipLinkAddFile, 6)
STASIS_UNDECLARED_OTHER(hipLinkComplete, 3)
STASIS_UNDECLARED_OTHER(hipLinkCreate, 4)
STASIS_UNDECLARED_OTHER(hipLinkDestroy, 1)
STASIS_UNDECLARED_OTHER(hipMemcpy2DArrayToArray, 9)
STASIS_UNDECLARED_OTHER(hipMemcpyAtoA, 5)
STASIS_UNDECLARED_OTHER(hipMemcpyAtoD, 4)
STASIS_UNDECLARED_OTHER(hipMemcpyAtoHAsync, 5)
STASIS_UNDECLARED_OTHER(hipMemcpyDtoA, 4)
STASIS_UNDECLARED_OTHER(hipMemcpyHtoAAsync, 5)
STASIS_UNDECLARED_OTHER(hipSetValidDevices, 2)
STASIS_UNDECLARED_OTHER(hipStreamBatchMemOp, 4)
STASIS_UNDECLARED_OTHER(hipStreamBeginCaptureToGraph, 6)
#endif

namespace {
#define STASIS_HIP_SAME(symbol, driver) STASIS_HIP_SIGNATURE(symbol, symbol)
#define STASIS_HIP_SAME_SPT(symbol, driver) \
  STASIS_HIP_SIGNATURE(symbol, symbol)      \
  STASIS_HIP_SIGNATURE(symbol, symbol##_spt)
#define STASIS_HIP_OWN(symbol, kind, parameters, arguments) STASIS_HIP_SIGNATURE(symbol, symbol)
#define STASIS_HIP_OWN_SPT(symbol, kind, parameters, arguments) \
  STASIS_HIP_SIGNATURE(symbol, symbol)                          \
  STASIS_HIP_SIGNATURE(symbol, symbol##_spt)
#define STASIS_HIP_VALUE(result, symbol, parameters, arguments) STASIS_HIP_SIGNATURE(symbol, symbol)
#define STASIS_HIP_SIGNATURE(symbol, theirs)                                \
  static_assert(SameSignature<ours::fn::symbol, decltype(::theirs)>::value, \
                #theirs ": another signature");
#define STASIS_HIP_OTHER(symbol, kind, count) \
  static_assert(Scalars<decltype(::symbol), count>::value, #symbol ": another signature");
#define STASIS_HIP_OTHER_SPT(symbol, kind, count) \
  STASIS_HIP_OTHER(symbol, kind, count)           \
  STASIS_HIP_OTHER(symbol##_spt, kind, count)
#include "abi/hip/functions.def"

}  // namespace
