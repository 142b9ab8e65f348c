/* A disk and a clock with faults, for the real processes of `make soak-jepsen`, by LD_PRELOAD.
 *
 *   write, truncate ──▶ journal: the old bytes  ──▶ the real call
 *   create, rename, unlink ──▶ journal: the old names ──▶ the real call
 *   fsync, fdatasync ──▶ [slow, hanging, failing] ──▶ the real call ──▶ journal: durable up to here
 *   clock_gettime, gettimeofday, time: wall clock + offset + (rate - 1) * time since the fault
 *
 * Only regular files and directories below JEPSEN_DATA count. JEPSEN_SHIM is a directory of the same file system: it has
 * the journal, a link to each written or removed file, and `faults`, a page that the harness writes. After SIGKILL the
 * harness undoes all journal records without a later sync (`disk.py`): the state of a disk after a power cut.
 *
 * A record begins before its call, and a sync counts from its begin. So a process that is killed between record and call
 * leaves a journal that undoes at least as much as a real disk could lose. Making a directory is durable; all other
 * names are durable when their directory is synced.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

struct faults { /* as in disk.py */
    volatile int32_t sync_delay_ms, is_hanging, is_full, is_failing, skips_syncs, unused;
    volatile int64_t clock_offset_ns, clock_begin_ns;
    volatile double clock_rate;
};

struct record { /* as in disk.py */
    uint32_t magic, kind;
    uint64_t inode, offset, size;
    uint32_t data_bytes, first_bytes, second_bytes, saved;
};

enum { WRITE = 1, CREATE, RENAME, UNLINK, SYNC };
#define MAGIC 0x4a45504e
#define LINKED 65536

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static char data_directory[PATH_MAX], shim_directory[PATH_MAX];
static struct faults none, *faults = &none;
static int journal = -1;
static uint64_t linked[LINKED];

__attribute__((constructor)) static void start(void) {
    const char *data = getenv("JEPSEN_DATA"), *shim = getenv("JEPSEN_SHIM");
    char path[PATH_MAX + 16];
    if (!data || !shim)
        return;
    snprintf(data_directory, sizeof data_directory, "%s/", data);
    snprintf(shim_directory, sizeof shim_directory, "%s", shim);
    snprintf(path, sizeof path, "%s/faults", shim);
    int page = syscall(SYS_openat, AT_FDCWD, path, O_RDONLY | O_CLOEXEC, 0);
    if (page < 0)
        return;
    void *mapped = mmap(NULL, sizeof none, PROT_READ, MAP_SHARED, page, 0);
    syscall(SYS_close, page);
    snprintf(path, sizeof path, "%s/journal", shim);
    int opened = syscall(SYS_openat, AT_FDCWD, path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (mapped == MAP_FAILED || opened < 0)
        return;
    faults = mapped;
    journal = syscall(SYS_fcntl, opened, F_DUPFD_CLOEXEC, 900);
    syscall(SYS_close, opened);
}

static int is_ours(const char *path) {
    size_t length = strlen(data_directory);
    return journal >= 0 && (!strncmp(path, data_directory, length) ||
                            (strlen(path) == length - 1 && !strncmp(path, data_directory, length - 1)));
}

static int path_of(int descriptor, char *path) {
    char name[64];
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlinkat, AT_FDCWD, name, path, PATH_MAX - 1);
    if (length < 0)
        return 0;
    path[length] = 0;
    return 1;
}

/* The absolute path of a name relative to a directory. */
static int full_path(int directory, const char *name, char *path) {
    char base[PATH_MAX];
    if (name[0] == '/')
        return snprintf(path, PATH_MAX, "%s", name) < PATH_MAX;
    if (directory == AT_FDCWD ? syscall(SYS_getcwd, base, sizeof base) < 0 : !path_of(directory, base))
        return 0;
    return snprintf(path, PATH_MAX, "%s/%s", base, name) < PATH_MAX;
}

static uint64_t directory_inode(const char *path) {
    char parent[PATH_MAX];
    struct stat status;
    snprintf(parent, sizeof parent, "%s", path);
    char *end = strrchr(parent, '/');
    if (!end)
        return 0;
    *end = 0;
    return syscall(SYS_newfstatat, AT_FDCWD, parent, &status, 0) == 0 ? status.st_ino : 0;
}

static void append(uint32_t kind, uint64_t inode, uint64_t offset, uint64_t size, const void *data, size_t data_bytes,
                   const char *first, const char *second, uint32_t saved) {
    struct record record = {MAGIC, kind, inode, offset, size, (uint32_t)data_bytes, first ? strlen(first) : 0,
                            second ? strlen(second) : 0, saved};
    struct iovec parts[4] = {{&record, sizeof record},
                             {(void *)data, data_bytes},
                             {(void *)first, record.first_bytes},
                             {(void *)second, record.second_bytes}};
    ssize_t length = sizeof record + data_bytes + record.first_bytes + record.second_bytes;
    if (syscall(SYS_writev, journal, parts, 4) != length) {
        static const char text[] = "disk_shim: the journal cannot be written\n";
        syscall(SYS_write, 2, text, sizeof text - 1);
        syscall(SYS_exit_group, 97);
    }
}

/* Keeps a link to a file, so that its inode is neither freed nor reused before a power cut. */
static int save(uint64_t inode, int source_directory, const char *source, int flags) {
    char path[PATH_MAX + 32];
    uint64_t *place = &linked[inode % LINKED];
    if (*place == inode)
        return 1;
    snprintf(path, sizeof path, "%s/i%llu", shim_directory, (unsigned long long)inode);
    if (syscall(SYS_linkat, source_directory, source, AT_FDCWD, path, flags) && errno != EEXIST)
        return 0;
    *place = inode;
    return 1;
}

/* Records the bytes that a write at `offset` replaces. The caller has the lock. */
static void record_write(int descriptor, const struct stat *status, off_t offset, size_t length) {
    char name[64], *old = NULL;
    size_t old_bytes = 0;
    snprintf(name, sizeof name, "/proc/self/fd/%d", descriptor);
    if (!save(status->st_ino, AT_FDCWD, name, AT_SYMLINK_FOLLOW))
        return;
    if (offset < status->st_size) {
        old_bytes = (size_t)(status->st_size - offset) < length ? (size_t)(status->st_size - offset) : length;
        old = malloc(old_bytes + 1);
        /* A descriptor of a program may be write-only. */
        int reader = syscall(SYS_openat, AT_FDCWD, name, O_RDONLY | O_CLOEXEC, 0);
        ssize_t got = reader < 0 || !old ? -1 : syscall(SYS_pread64, reader, old, old_bytes, offset);
        old_bytes = got < 0 ? 0 : (size_t)got;
        if (reader >= 0)
            syscall(SYS_close, reader);
    }
    append(WRITE, status->st_ino, offset, status->st_size, old, old_bytes, NULL, NULL, 0);
    free(old);
}

/* True if the file is ours; then the lock is held, and `leave` releases it. */
static int enter(int descriptor, struct stat *status) {
    char path[PATH_MAX];
    if (journal < 0 || syscall(SYS_fstat, descriptor, status) || !S_ISREG(status->st_mode))
        return 0;
    if (!path_of(descriptor, path) || !is_ours(path))
        return 0;
    pthread_mutex_lock(&lock);
    syscall(SYS_fstat, descriptor, status);
    return 1;
}

static ssize_t leave(ssize_t result) {
    int error = errno;
    pthread_mutex_unlock(&lock);
    errno = error;
    return result;
}

static int refusal(const struct stat *status, off_t end) {
    if (faults->is_failing)
        return EIO;
    return faults->is_full && end > status->st_size ? ENOSPC : 0;
}

static ssize_t fail(int error) {
    errno = error;
    return -1;
}

static ssize_t written(long number, int descriptor, const struct iovec *parts, int count, off_t offset) {
    struct stat status;
    size_t length = 0;
    for (int each = 0; each < count; each++)
        length += parts[each].iov_len;
    int is_placed = offset >= 0;
    int is_counted = enter(descriptor, &status);
    if (is_counted) {
        if (!is_placed)
            offset = syscall(SYS_fcntl, descriptor, F_GETFL) & O_APPEND ? status.st_size
                                                                         : syscall(SYS_lseek, descriptor, 0, SEEK_CUR);
        int error = refusal(&status, offset + length);
        if (error)
            return leave(fail(error));
        record_write(descriptor, &status, offset, length);
    }
    ssize_t result = is_placed ? syscall(number, descriptor, parts, count, offset, 0)
                               : syscall(number, descriptor, parts, count);
    return is_counted ? leave(result) : result;
}

ssize_t write(int descriptor, const void *data, size_t length) {
    struct iovec part = {(void *)data, length};
    return written(SYS_writev, descriptor, &part, 1, -1);
}

ssize_t writev(int descriptor, const struct iovec *parts, int count) {
    return written(SYS_writev, descriptor, parts, count, -1);
}

ssize_t pwrite64(int descriptor, const void *data, size_t length, off64_t offset) {
    struct iovec part = {(void *)data, length};
    return written(SYS_pwritev, descriptor, &part, 1, offset);
}

ssize_t pwrite(int descriptor, const void *data, size_t length, off_t offset) {
    return pwrite64(descriptor, data, length, offset);
}

ssize_t pwritev64(int descriptor, const struct iovec *parts, int count, off64_t offset) {
    return written(SYS_pwritev, descriptor, parts, count, offset);
}

ssize_t pwritev(int descriptor, const struct iovec *parts, int count, off_t offset) {
    return pwritev64(descriptor, parts, count, offset);
}

ssize_t pwritev64v2(int descriptor, const struct iovec *parts, int count, off64_t offset, int flags) {
    return flags ? fail(EOPNOTSUPP) : offset < 0 ? writev(descriptor, parts, count) : pwritev64(descriptor, parts, count, offset);
}

ssize_t pwritev2(int descriptor, const struct iovec *parts, int count, off_t offset, int flags) {
    return pwritev64v2(descriptor, parts, count, offset, flags);
}

int ftruncate64(int descriptor, off64_t size) {
    struct stat status;
    if (!enter(descriptor, &status))
        return syscall(SYS_ftruncate, descriptor, size);
    int error = refusal(&status, 0);
    if (error)
        return leave(fail(error));
    record_write(descriptor, &status, size, status.st_size);
    return leave(syscall(SYS_ftruncate, descriptor, size));
}

int ftruncate(int descriptor, off_t size) { return ftruncate64(descriptor, size); }

int posix_fallocate64(int descriptor, off64_t offset, off64_t length) {
    struct stat status;
    if (!enter(descriptor, &status))
        return syscall(SYS_fallocate, descriptor, 0, offset, length) ? errno : 0;
    int error = refusal(&status, offset + length);
    if (!error) {
        record_write(descriptor, &status, status.st_size, 0);
        error = syscall(SYS_fallocate, descriptor, 0, offset, length) ? errno : 0;
    }
    leave(0);
    return error;
}

int posix_fallocate(int descriptor, off_t offset, off_t length) { return posix_fallocate64(descriptor, offset, length); }

static int synced(long number, int descriptor) {
    char path[PATH_MAX];
    struct stat status;
    if (journal < 0 || syscall(SYS_fstat, descriptor, &status) || !path_of(descriptor, path) || !is_ours(path))
        return syscall(number, descriptor);
    pthread_mutex_lock(&lock);
    struct stat length;
    syscall(SYS_fstat, journal, &length);
    pthread_mutex_unlock(&lock);
    struct timespec delay = {faults->sync_delay_ms / 1000, faults->sync_delay_ms % 1000 * 1000000L};
    syscall(SYS_nanosleep, &delay, NULL);
    struct timespec poll = {0, 20000000};
    while (faults->is_hanging)
        syscall(SYS_nanosleep, &poll, NULL);
    if (faults->is_failing)
        return fail(EIO);
    if (faults->skips_syncs)
        return 0;
    int result = syscall(number, descriptor);
    if (result == 0) {
        pthread_mutex_lock(&lock);
        append(SYNC, status.st_ino, length.st_size, 0, NULL, 0, NULL, NULL, 0);
        pthread_mutex_unlock(&lock);
    }
    return result;
}

int fsync(int descriptor) { return synced(SYS_fsync, descriptor); }
int fdatasync(int descriptor) { return synced(SYS_fdatasync, descriptor); }

static int opened(int directory, const char *name, int flags, mode_t mode) {
    char path[PATH_MAX];
    struct stat status;
    flags |= O_LARGEFILE;
    if (journal < 0 || !(flags & (O_CREAT | O_TRUNC)) || (flags & O_TMPFILE) == O_TMPFILE ||
        !full_path(directory, name, path) || !is_ours(path))
        return syscall(SYS_openat, directory, name, flags, mode);
    pthread_mutex_lock(&lock);
    int exists = syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) == 0;
    if (!exists && flags & O_CREAT) {
        if (faults->is_failing || faults->is_full)
            return leave(fail(faults->is_failing ? EIO : ENOSPC));
        append(CREATE, directory_inode(path), 0, 0, NULL, 0, path, NULL, 0);
    }
    int cuts = exists && flags & O_TRUNC && S_ISREG(status.st_mode) && !(flags & O_EXCL && flags & O_CREAT);
    int result = syscall(SYS_openat, directory, name, cuts ? flags & ~O_TRUNC : flags, mode);
    if (result >= 0 && cuts) {
        syscall(SYS_fstat, result, &status);
        record_write(result, &status, 0, status.st_size);
        syscall(SYS_ftruncate, result, 0);
    }
    return leave(result);
}

#define MODE                                            \
    mode_t mode = 0;                                    \
    if (flags & O_CREAT || (flags & O_TMPFILE) == O_TMPFILE) { \
        va_list rest;                                   \
        va_start(rest, flags);                          \
        mode = va_arg(rest, mode_t);                    \
        va_end(rest);                                   \
    }

int open64(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags, mode); }
int open(const char *name, int flags, ...) { MODE return opened(AT_FDCWD, name, flags, mode); }
int openat64(int directory, const char *name, int flags, ...) { MODE return opened(directory, name, flags, mode); }
int openat(int directory, const char *name, int flags, ...) { MODE return opened(directory, name, flags, mode); }

int renameat2(int from_directory, const char *from, int to_directory, const char *to, unsigned flags) {
    char old[PATH_MAX], new[PATH_MAX];
    struct stat status;
    if (journal < 0 || !full_path(from_directory, from, old) || !full_path(to_directory, to, new) || !is_ours(old))
        return syscall(SYS_renameat2, from_directory, from, to_directory, to, flags);
    pthread_mutex_lock(&lock);
    if (faults->is_failing)
        return leave(fail(EIO));
    int replaced = syscall(SYS_newfstatat, AT_FDCWD, new, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
                   save(status.st_ino, AT_FDCWD, new, 0);
    if (syscall(SYS_faccessat, AT_FDCWD, old, F_OK) == 0)
        append(RENAME, directory_inode(old), replaced ? status.st_ino : 0, 0, NULL, 0, old, new, replaced);
    return leave(syscall(SYS_renameat2, from_directory, from, to_directory, to, flags));
}

int renameat(int from_directory, const char *from, int to_directory, const char *to) {
    return renameat2(from_directory, from, to_directory, to, 0);
}

int rename(const char *from, const char *to) { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }

int unlinkat(int directory, const char *name, int flags) {
    char path[PATH_MAX];
    struct stat status;
    if (journal < 0 || flags || !full_path(directory, name, path) || !is_ours(path))
        return syscall(SYS_unlinkat, directory, name, flags);
    pthread_mutex_lock(&lock);
    if (syscall(SYS_newfstatat, AT_FDCWD, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISREG(status.st_mode) &&
        save(status.st_ino, AT_FDCWD, path, 0))
        append(UNLINK, directory_inode(path), status.st_ino, 0, NULL, 0, path, NULL, 1);
    return leave(syscall(SYS_unlinkat, directory, name, flags));
}

int unlink(const char *name) { return unlinkat(AT_FDCWD, name, 0); }

/* -- the wall clock; the monotonic clock stays right ------------------------------------------------------------- */

static int real_clock(clockid_t clock, struct timespec *time) {
    static int (*volatile next)(clockid_t, struct timespec *);
    if (!next)
        next = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    return next(clock, time);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    struct timespec monotonic;
    int result = real_clock(clock, time);
    int64_t offset_ns = faults->clock_offset_ns, begin_ns = faults->clock_begin_ns;
    if (result || (clock != CLOCK_REALTIME && clock != CLOCK_REALTIME_COARSE) || (!offset_ns && !begin_ns))
        return result;
    if (begin_ns && !real_clock(CLOCK_MONOTONIC, &monotonic)) {
        int64_t since_ns = monotonic.tv_sec * 1000000000LL + monotonic.tv_nsec - begin_ns;
        offset_ns += (int64_t)(since_ns * (faults->clock_rate - 1));
    }
    int64_t now_ns = time->tv_sec * 1000000000LL + time->tv_nsec + offset_ns;
    time->tv_sec = now_ns / 1000000000LL;
    time->tv_nsec = now_ns % 1000000000LL;
    return 0;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    (void)zone;
    if (clock_gettime(CLOCK_REALTIME, &now))
        return -1;
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result)
        *result = now.tv_sec;
    return now.tv_sec;
}
