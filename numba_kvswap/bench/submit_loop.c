/* What a program written in C would do: one driver call a copy, and nothing else. */

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int (*memcpy_async_t)(uint64_t target, uint64_t source, size_t bytes, void *stream);

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns the first status that is not 0, else 0. The clock is read in here so that the caller's wait for the
   GIL is no part of host_ns. */
int submit_loop(void *memcpy_async, const uint64_t *targets, const uint64_t *sources, size_t copies, size_t bytes,
                void *stream, int64_t *host_ns)
{
    memcpy_async_t copy = (memcpy_async_t)memcpy_async;
    int status = 0;
    int64_t start_ns = now_ns();
    for (size_t i = 0; i < copies && status == 0; i++)
        status = copy(targets[i], sources[i], bytes, stream);
    *host_ns = now_ns() - start_ns;
    return status;
}
