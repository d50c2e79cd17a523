/* Logs what a process does to the files of one folder, for the images that tests/support/disk.py makes of it.
 *
 * Preloaded (LD_PRELOAD). TAPE_DISK_FOLDER names the folder, an absolute path without links, TAPE_DISK_LOG the log, which
 * must lie elsewhere. TAPE_DISK_SYNC is how many microseconds a sync takes at least, as on a real disk.
 *
 * Every change is made and logged under one lock, so that the log has the order in which changes happened over all
 * threads. A sync is two records: it covers what was written before it began, and only once it has ended.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum { OPEN = 1, CLOSE, WRITE, TRUNCATE, SYNC, SYNCED, UNLINK, RENAME };

struct record {
    uint32_t what;
    int32_t file;
    int64_t number; /* flags of open, offset of write, length of truncate, which sync */
    uint64_t size;  /* bytes that follow: a path, two paths with a NUL between, or data */
};

#define MOST_FILES 65536

static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER;
static unsigned char watched[MOST_FILES];
static const char *folder;
static size_t folder_size;
static int logged = -1;
static int64_t syncs;
static struct timespec sync_time;

static int (*real_open)(const char *, int, ...);
static int (*real_close)(int);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static int (*real_ftruncate)(int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_unlink)(const char *);
static int (*real_rename)(const char *, const char *);

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("TAPE_DISK_LOG"), *wait = getenv("TAPE_DISK_SYNC");
    real_open = dlsym(RTLD_NEXT, "open");
    real_close = dlsym(RTLD_NEXT, "close");
    real_write = dlsym(RTLD_NEXT, "write");
    real_writev = dlsym(RTLD_NEXT, "writev");
    real_pwrite = dlsym(RTLD_NEXT, "pwrite");
    real_ftruncate = dlsym(RTLD_NEXT, "ftruncate");
    real_fsync = dlsym(RTLD_NEXT, "fsync");
    real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    real_unlink = dlsym(RTLD_NEXT, "unlink");
    real_rename = dlsym(RTLD_NEXT, "rename");
    folder = getenv("TAPE_DISK_FOLDER");
    if (!folder || !name) return;
    folder_size = strlen(folder);
    if (wait) {
        sync_time.tv_sec = atol(wait) / 1000000;
        sync_time.tv_nsec = atol(wait) % 1000000 * 1000;
    }
    logged = real_open(name, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (logged < 0) {
        perror("disk_log");
        _exit(70);
    }
}

/* Half a record would make nonsense of the rest: whoever cannot log must not go on. */
static void put(const void *data, size_t size) {
    const char *next = data;
    while (size) {
        ssize_t done = real_write(logged, next, size);
        if (done < 0 && errno == EINTR) continue;
        if (done <= 0) _exit(71);
        next += done;
        size -= done;
    }
}

static void tell(uint32_t what, int file, int64_t number, const void *data, size_t size) {
    int kept = errno;
    struct record head = {what, file, number, size};
    put(&head, sizeof head);
    put(data, size);
    errno = kept;
}

static int inside(const char *path) {
    return logged >= 0 && path && !strncmp(path, folder, folder_size) && (!path[folder_size] || path[folder_size] == '/');
}

static int seen(int file) { return logged >= 0 && file >= 0 && file < MOST_FILES && watched[file]; }

static int open_logged(const char *path, int flags, mode_t mode) {
    if (!inside(path)) return real_open(path, flags, mode);
    pthread_mutex_lock(&order);
    int file = real_open(path, flags, mode);
    if (file >= MOST_FILES) _exit(72);
    if (file >= 0) {
        watched[file] = 1;
        tell(OPEN, file, flags, path, strlen(path));
    }
    pthread_mutex_unlock(&order);
    return file;
}

#define OPENS(name)                                        \
    int name(const char *path, int flags, ...) {           \
        mode_t mode = 0;                                   \
        if (flags & (O_CREAT | O_TMPFILE)) {               \
            va_list rest;                                  \
            va_start(rest, flags);                         \
            mode = va_arg(rest, mode_t);                   \
            va_end(rest);                                  \
        }                                                  \
        return open_logged(path, flags, mode);             \
    }
OPENS(open)
OPENS(open64)

int close(int file) {
    if (!seen(file)) return real_close(file);
    pthread_mutex_lock(&order);
    watched[file] = 0;
    tell(CLOSE, file, 0, NULL, 0);
    int result = real_close(file);
    pthread_mutex_unlock(&order);
    return result;
}

ssize_t write(int file, const void *data, size_t size) {
    if (!seen(file)) return real_write(file, data, size);
    pthread_mutex_lock(&order);
    ssize_t done = real_write(file, data, size);
    if (done > 0) tell(WRITE, file, lseek(file, 0, SEEK_CUR) - done, data, done);
    pthread_mutex_unlock(&order);
    return done;
}

ssize_t writev(int file, const struct iovec *parts, int count) {
    if (!seen(file)) return real_writev(file, parts, count);
    /* The parts one after the other are the same to whoever reads the file, and a short count is allowed. */
    ssize_t all = 0;
    for (int at = 0; at < count; at++) {
        ssize_t done = write(file, parts[at].iov_base, parts[at].iov_len);
        if (done < 0) return all ? all : done;
        all += done;
        if ((size_t)done < parts[at].iov_len) break;
    }
    return all;
}

#define PWRITES(name, offset_type)                                                   \
    ssize_t name(int file, const void *data, size_t size, offset_type offset) {      \
        if (!seen(file)) return real_pwrite(file, data, size, offset);               \
        pthread_mutex_lock(&order);                                                  \
        ssize_t done = real_pwrite(file, data, size, offset);                        \
        if (done > 0) tell(WRITE, file, offset, data, done);                         \
        pthread_mutex_unlock(&order);                                                \
        return done;                                                                 \
    }
PWRITES(pwrite, off_t)
PWRITES(pwrite64, off64_t)

#define TRUNCATES(name, offset_type)                                 \
    int name(int file, offset_type length) {                         \
        if (!seen(file)) return real_ftruncate(file, length);        \
        pthread_mutex_lock(&order);                                  \
        int result = real_ftruncate(file, length);                   \
        if (!result) tell(TRUNCATE, file, length, NULL, 0);          \
        pthread_mutex_unlock(&order);                                \
        return result;                                               \
    }
TRUNCATES(ftruncate, off_t)
TRUNCATES(ftruncate64, off64_t)

#define SYNCS(name)                                                  \
    int name(int file) {                                             \
        if (!seen(file)) return real_##name(file);                   \
        pthread_mutex_lock(&order);                                  \
        int64_t number = ++syncs;                                    \
        tell(SYNC, file, number, NULL, 0);                           \
        pthread_mutex_unlock(&order);                                \
        nanosleep(&sync_time, NULL);                                 \
        int result = real_##name(file);                              \
        pthread_mutex_lock(&order);                                  \
        if (!result) tell(SYNCED, file, number, NULL, 0);            \
        pthread_mutex_unlock(&order);                                \
        return result;                                               \
    }
SYNCS(fsync)
SYNCS(fdatasync)

int unlink(const char *path) {
    if (!inside(path)) return real_unlink(path);
    pthread_mutex_lock(&order);
    int result = real_unlink(path);
    if (!result) tell(UNLINK, -1, 0, path, strlen(path));
    pthread_mutex_unlock(&order);
    return result;
}

int rename(const char *from, const char *to) {
    if (!inside(from) && !inside(to)) return real_rename(from, to);
    pthread_mutex_lock(&order);
    int result = real_rename(from, to);
    if (!result) {
        size_t first = strlen(from) + 1, second = strlen(to);
        char *both = malloc(first + second);
        if (!both) _exit(73);
        memcpy(both, from, first);
        memcpy(both + first, to, second);
        tell(RENAME, -1, 0, both, first + second);
        free(both);
    }
    pthread_mutex_unlock(&order);
    return result;
}
