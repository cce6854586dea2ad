/* A disk that fails as a network volume does, and a wrong clock, for tests of whole programs.
 *
 * Load it with LD_PRELOAD. It wraps the calls of libc with which `orchestrate` works on files, and
 * leaves all other programs alone. A call on the state of a fleet in FAULTY_DISK_ROOT is slow, fails
 * before it does anything, does half of its work and fails, or does all of it and reports an error.
 *
 *   FAULTY_DISK_ROOT      the workspace; without it no call fails
 *   FAULTY_DISK_SEED      selects which calls fail
 *   FAULTY_DISK_RATE      number of calls in a thousand that fail or are delayed
 *   FAULTY_DISK_NO_LOCKS  if set, the volume supports no locks
 *   FAULTY_CLOCK_MS       error of the wall clock in milliseconds
 *   FAULTY_CLOCK_FILE     once this file exists, the monotonic clock fails once, which panics
 *
 * Every failure can occur on a network volume: synced data is never lost, and a call that reports
 * success did succeed.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define DELAY_MS 60

enum when { NEVER, BEFORE, HALFWAY, AFTER };

static const char *root, *clock_file;
static uint64_t seed, rate;
static long long clock_ms;
static bool no_locks;
static atomic_ullong calls;
static __thread int fault; /* the error of the call that fails */

static uint64_t number(const char *name) {
    const char *text = getenv(name);
    return text ? strtoull(text, NULL, 10) : 0;
}

__attribute__((constructor)) static void start(void) {
    char program[PATH_MAX] = "";
    if (readlink("/proc/self/exe", program, sizeof program - 1) < 0) return;
    const char *name = strrchr(program, '/');
    if (!name || strcmp(name, "/orchestrate") != 0) return;
    root = getenv("FAULTY_DISK_ROOT");
    seed = number("FAULTY_DISK_SEED");
    rate = root ? number("FAULTY_DISK_RATE") : 0;
    no_locks = getenv("FAULTY_DISK_NO_LOCKS") != NULL;
    clock_file = getenv("FAULTY_CLOCK_FILE");
    const char *wrong = getenv("FAULTY_CLOCK_MS");
    clock_ms = wrong ? atoll(wrong) : 0;
}

/* The `count`-th number of the seed's sequence. */
static uint64_t nth(uint64_t count) {
    uint64_t z = seed + count * 0x9e3779b97f4a7c15u;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
    return z ^ (z >> 31);
}

static bool begins(const char *text, const char *start) {
    return strncmp(text, start, strlen(start)) == 0;
}

/* True for the queue, the members, and the journals and states of runs. Files that steps, users and
 * settings name are not the fleet's: a run rightly fails if they cannot be read. */
static bool is_state(const char *path) {
    if (!begins(path, root)) return false;
    path += strlen(root);
    if (begins(path, "/.orchestrate/runs/")) {
        const char *name = strrchr(path, '/');
        return begins(name, "/journal.jsonl") || strstr(name, "state.json");
    }
    if (begins(path, "/.orchestrate/"))
        return !begins(path, "/.orchestrate/results") && !begins(path, "/.orchestrate/config");
    return begins(path, "/inbox/") || begins(path, "/processed/") || begins(path, "/failed/");
}

static bool is_state_at(int dir, const char *path) {
    char here[PATH_MAX] = "", whole[2 * PATH_MAX];
    if (path && path[0] == '/') return is_state(path);
    char link[64] = "/proc/self/cwd";
    if (dir != AT_FDCWD) snprintf(link, sizeof link, "/proc/self/fd/%d", dir);
    if (readlink(link, here, sizeof here - 1) < 0) return false;
    if (!path || !*path) return is_state(here);
    snprintf(whole, sizeof whole, "%s/%s", here, path);
    return is_state(whole);
}

/* Decides the fate of a call on a path, relative to an open directory, or on an open file if `path`
 * is NULL. Sets `fault`. May sleep. */
static enum when fate(int dir, const char *path) {
    if (!rate) return NEVER;
    uint64_t drawn = nth(atomic_fetch_add(&calls, 1));
    if (drawn % 1000 >= rate) return NEVER;
    int before = errno;
    bool hit = is_state_at(dir, path);
    errno = before;
    if (!hit) return NEVER;
    uint64_t rest = drawn / 1000;
    if (rest % 2 == 0) {
        struct timespec delay = { .tv_nsec = (long)(rest / 2 % DELAY_MS) * 1000000 };
        nanosleep(&delay, NULL);
        return NEVER;
    }
    static const int faults[] = { EIO, ESTALE, ETIMEDOUT };
    fault = faults[rest / 6 % 3];
    return BEFORE + rest / 2 % 3;
}

#define FAIL(failed) do { errno = fault; return failed; } while (0)

/* Defines `name`, a call that does all of its work or none. `undo` closes what it has opened. */
#define WRAP(type, name, failed, undo, dir, path, parameters, ...)         \
    type name parameters {                                                 \
        static type(*next) parameters;                                     \
        if (!next) next = (type(*) parameters)dlsym(RTLD_NEXT, #name);     \
        enum when when = fate(dir, path);                                  \
        if (when == BEFORE || when == HALFWAY) FAIL(failed);               \
        type result = next(__VA_ARGS__);                                   \
        if (when != AFTER || result == failed) return result;              \
        undo;                                                              \
        FAIL(failed);                                                      \
    }

/* Opens a file; the mode is there only for a new one. */
#define WRAP_OPEN(name, dir, parameters, ...)                              \
    int name parameters {                                                  \
        static int(*next) parameters;                                      \
        if (!next) next = (int(*) parameters)dlsym(RTLD_NEXT, #name);      \
        va_list rest;                                                      \
        va_start(rest, flags);                                             \
        mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest);                                                      \
        enum when when = fate(dir, path);                                  \
        if (when == BEFORE || when == HALFWAY) FAIL(-1);                   \
        int result = next(__VA_ARGS__, flags, mode);                       \
        if (when != AFTER || result < 0) return result;                    \
        syscall(SYS_close, result);                                        \
        FAIL(-1);                                                          \
    }

WRAP_OPEN(open, AT_FDCWD, (const char *path, int flags, ...), path)
WRAP_OPEN(open64, AT_FDCWD, (const char *path, int flags, ...), path)
WRAP_OPEN(openat, dir, (int dir, const char *path, int flags, ...), dir, path)
WRAP_OPEN(openat64, dir, (int dir, const char *path, int flags, ...), dir, path)
WRAP(DIR *, opendir, NULL, closedir(result), AT_FDCWD, path, (const char *path), path)

WRAP(int, rename, -1, , AT_FDCWD, to, (const char *from, const char *to), from, to)
WRAP(int, renameat, -1, , dir, to, (int old, const char *from, int dir, const char *to), old, from,
     dir, to)
WRAP(int, renameat2, -1, , dir, to,
     (int old, const char *from, int dir, const char *to, unsigned flags), old, from, dir, to, flags)
WRAP(int, link, -1, , AT_FDCWD, to, (const char *from, const char *to), from, to)
WRAP(int, linkat, -1, , dir, to, (int old, const char *from, int dir, const char *to, int flags),
     old, from, dir, to, flags)
WRAP(int, unlink, -1, , AT_FDCWD, path, (const char *path), path)
WRAP(int, unlinkat, -1, , dir, path, (int dir, const char *path, int flags), dir, path, flags)
WRAP(int, mkdir, -1, , AT_FDCWD, path, (const char *path, mode_t mode), path, mode)
WRAP(int, mkdirat, -1, , dir, path, (int dir, const char *path, mode_t mode), dir, path, mode)
WRAP(int, rmdir, -1, , AT_FDCWD, path, (const char *path), path)
WRAP(int, statx, -1, , dir, path,
     (int dir, const char *path, int flags, unsigned mask, struct statx *into), dir, path, flags,
     mask, into)

WRAP(ssize_t, read, -1, , file, NULL, (int file, void *into, size_t size), file, into, size)
WRAP(ssize_t, pread64, -1, , file, NULL, (int file, void *into, size_t size, off64_t at), file, into,
     size, at)
WRAP(int, fsync, -1, , file, NULL, (int file), file)
WRAP(int, fdatasync, -1, , file, NULL, (int file), file)
WRAP(int, ftruncate64, -1, , file, NULL, (int file, off64_t size), file, size)

/* Writes, and may write half of the bytes before it fails. */
#define WRAP_WRITE(name, parameters, ...)                                  \
    ssize_t name parameters {                                              \
        static ssize_t(*next) parameters;                                  \
        if (!next) next = (ssize_t(*) parameters)dlsym(RTLD_NEXT, #name);  \
        enum when when = fate(file, NULL);                                 \
        if (when == BEFORE) FAIL(-1);                                      \
        if (when == HALFWAY) size /= 2;                                    \
        ssize_t result = next(__VA_ARGS__);                                \
        if (when == NEVER || result < 0) return result;                    \
        FAIL(-1);                                                          \
    }

WRAP_WRITE(write, (int file, const void *from, size_t size), file, from, size)
WRAP_WRITE(pwrite64, (int file, const void *from, size_t size, off64_t at), file, from, size, at)

/* A close reports the failure of an earlier write. It always closes. */
int close(int file) {
    enum when when = fate(file, NULL);
    int result = syscall(SYS_close, file);
    if (when == NEVER || result < 0) return result;
    FAIL(-1);
}

/* A listing may stop in the middle. */
#define WRAP_READDIR(name, entry)                                          \
    struct entry *name(DIR *dir) {                                         \
        static struct entry *(*next)(DIR *);                               \
        if (!next) next = (struct entry * (*)(DIR *)) dlsym(RTLD_NEXT, #name); \
        if (fate(dirfd(dir), NULL) != NEVER) FAIL(NULL);                   \
        return next(dir);                                                  \
    }

WRAP_READDIR(readdir, dirent)
WRAP_READDIR(readdir64, dirent64)

int flock(int file, int operation) {
    if (no_locks) {
        errno = ENOLCK;
        return -1;
    }
    return syscall(SYS_flock, file, operation);
}

int clock_gettime(clockid_t clock, struct timespec *into) {
    static int (*next)(clockid_t, struct timespec *);
    static atomic_bool failed;
    if (!next) next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    if (clock_file && clock == CLOCK_MONOTONIC && !failed && access(clock_file, F_OK) == 0
        && !atomic_exchange(&failed, true)) {
        errno = EINVAL;
        return -1;
    }
    int result = next(clock, into);
    if (clock == CLOCK_REALTIME && clock_ms && result == 0) {
        long long ns = into->tv_nsec + clock_ms % 1000 * 1000000;
        into->tv_sec += clock_ms / 1000 + (ns >= 1000000000) - (ns < 0);
        into->tv_nsec = (ns + 1000000000) % 1000000000;
    }
    return result;
}
