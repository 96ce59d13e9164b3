/* What a program written in C would do: one driver call a copy, or those of one launch, and nothing else. */

#include <stddef.h>
#include <stdint.h>
#include <time.h>

typedef int (*memcpy_async_t)(uint64_t target, uint64_t source, size_t bytes, void *stream);
typedef int (*launch_t)(void *function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                        unsigned block_y, unsigned block_z, unsigned shared_bytes, void *stream, void **params,
                        void **extra);

typedef int (*event_record_t)(void *event, void *stream);

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

/* Returns the first status that is not 0, else 0. The clock is read in here so that the caller's wait for the
   GIL is no part of host_ns. */
int submit_loop(void *memcpy_async, const uint64_t *targets, const uint64_t *sources, const uint64_t *bytes,
                size_t copies, void *stream, int64_t *host_ns)
{
    memcpy_async_t copy = (memcpy_async_t)memcpy_async;
    int status = 0;
    int64_t start_ns = now_ns();
    for (size_t i = 0; i < copies && status == 0; i++)
        status = copy(targets[i], sources[i], (size_t)bytes[i], stream);
    *host_ns = now_ns() - start_ns;
    return status;
}

/* The calls of a swap by one kernel, on `stream`: record `start`, copy the table of ids to the device where it has
   bytes, launch a one-dimensional grid, record `end`. Returns the first status that is not 0, else 0. */
int launch_swap(void *event_record, void *memcpy_async, void *launch, void *start, void *end, uint64_t table_device,
                uint64_t table_host, size_t table_bytes, void *function, unsigned grid_x, unsigned block_x,
                void **params, void *stream, int64_t *host_ns)
{
    event_record_t record = (event_record_t)event_record;
    memcpy_async_t copy = (memcpy_async_t)memcpy_async;
    launch_t call = (launch_t)launch;
    int64_t start_ns = now_ns();
    int status = record(start, stream);
    if (status == 0 && table_bytes != 0)
        status = copy(table_device, table_host, table_bytes, stream);
    if (status == 0)
        status = call(function, grid_x, 1, 1, block_x, 1, 1, 0, stream, params, NULL);
    if (status == 0)
        status = record(end, stream);
    *host_ns = now_ns() - start_ns;
    return status;
}
