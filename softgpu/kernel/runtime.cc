// The part of every module image that runs kernels. The threads of a block are fibers on the
// calling thread, or successive calls if the kernel has no barrier.

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <ucontext.h>

#include "softgpu/kernel.h"

// NOLINTBEGIN(bugprone-reserved-identifier,readability-identifier-naming): the linker's names
extern "C" {
extern const softgpu::Kernel* const __start_softgpu_kernels[];
extern const softgpu::Kernel* const __stop_softgpu_kernels[];
}
// NOLINTEND(bugprone-reserved-identifier,readability-identifier-naming)

namespace softgpu __attribute__((visibility("hidden"))) {
  namespace {

  constexpr size_t kStackBytes = 256 * 1024;

  struct Fiber {
    ucontext_t context;
    Dim3 thread_idx;
    bool done = false;
  };

  struct Block {
    ucontext_t scheduler;
    Fiber* current = nullptr;
    const Kernel* kernel = nullptr;
    void** params = nullptr;
  };

  thread_local Thread t_self;
  thread_local Block* t_block = nullptr;

  Dim3 At(unsigned i, const Dim3& shape) {
    return {i % shape.x, i / shape.x % shape.y, i / shape.x / shape.y};
  }

  void FiberMain() {
    Block* block = t_block;
    block->kernel->call(block->params);
    block->current->done = true;
    swapcontext(&block->current->context, &block->scheduler);
  }

  // Each round runs every unfinished thread to its next barrier.
  void RunFibers(Block* block, Fiber* fibers, char* stacks, unsigned count, const Dim3& shape) {
    for (unsigned i = 0; i < count; ++i) {
      Fiber& fiber = fibers[i];
      getcontext(&fiber.context);
      fiber.context.uc_stack.ss_sp = stacks + i * kStackBytes;
      fiber.context.uc_stack.ss_size = kStackBytes;
      fiber.context.uc_link = nullptr;
      fiber.thread_idx = At(i, shape);
      fiber.done = false;
      makecontext(&fiber.context, FiberMain, 0);
    }
    for (unsigned left = count; left > 0;) {
      for (unsigned i = 0; i < count; ++i) {
        if (fibers[i].done) continue;
        block->current = &fibers[i];
        t_self.thread_idx = fibers[i].thread_idx;
        swapcontext(&block->scheduler, &fibers[i].context);
        if (fibers[i].done) --left;
      }
    }
  }

  int Run(const Kernel* kernel, const Launch* launch) {
    unsigned threads = launch->block.x * launch->block.y * launch->block.z;
    unsigned blocks = launch->grid.x * launch->grid.y * launch->grid.z;
    bool fibers_needed = !(kernel->flags & kKernelNoBarrier) && threads > 1;
    size_t fiber_bytes = (threads * sizeof(Fiber) + 4095) & ~size_t{4095};
    size_t bytes = fiber_bytes + threads * kStackBytes;
    char* memory = nullptr;
    if (fibers_needed) {
      void* mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
      if (mapped == MAP_FAILED) return errno;
      memory = static_cast<char*>(mapped);
    }
    Block block;
    block.kernel = kernel;
    block.params = launch->params;
    t_block = fibers_needed ? &block : nullptr;
    t_self = {{}, {}, launch->block, launch->grid, launch->dynamic_shared};
    for (unsigned b = 0; b < blocks; ++b) {
      t_self.block_idx = At(b, launch->grid);
      if (fibers_needed) {
        RunFibers(&block, reinterpret_cast<Fiber*>(memory), memory + fiber_bytes, threads,
                  launch->block);
        continue;
      }
      for (unsigned t = 0; t < threads; ++t) {
        t_self.thread_idx = At(t, launch->block);
        kernel->call(launch->params);
      }
    }
    t_block = nullptr;
    if (memory != nullptr) munmap(memory, bytes);
    return 0;
  }

  }  // namespace

  Thread& Self() { return t_self; }

  void Barrier() {
    unsigned threads = t_self.block_dim.x * t_self.block_dim.y * t_self.block_dim.z;
    if (threads == 1) return;
    if (t_block == nullptr) {
      fprintf(stderr,
              "softgpu: a kernel that is declared STASIS_KERNEL_NO_BARRIER calls __syncthreads(); "
              "declare it STASIS_KERNEL\n");
      abort();
    }
    swapcontext(&t_block->current->context, &t_block->scheduler);
  }

}  // namespace softgpu

extern "C" __attribute__((visibility("default"))) const softgpu::Image softgpu_image = {
    softgpu::kImageMagic, softgpu::kImageVersion, __start_softgpu_kernels, __stop_softgpu_kernels,
    softgpu::Run};
