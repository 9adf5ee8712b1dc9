// Fails, tears or kills at the n-th operation on the disk below a folder, underneath Python, Rust and C alike.
//
// tests/faults/disk_calls.py builds it and loads it with LD_PRELOAD. Its functions stand before those of the C library
// that change a disk, count the calls whose path lies below the folder, and hand all the others on as they are.
// It cannot see writes into mapped memory (mmap), what a FILE* writes (fwrite, fflush: calls within the C library), and
// system calls that are made without the C library. Reading is no operation here, nor are modes, owners and times.
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#define PATHS (2 * PATH_MAX) // a folder and a name below it

enum kind { OTHER = 1, GROWS = 2, WRITES = 4 };            // GROWS and WRITES take room on the disk
enum fault { NONE, FAIL, FAIL_ON, TEAR, KILL, TEAR_KILL }; // FAIL_ON: every operation from the n-th on
enum answer { GO_ON, REFUSE, HALF };

static const int counted_kinds[] = {
    [NONE] = OTHER | GROWS | WRITES, [FAIL] = OTHER | GROWS | WRITES, [FAIL_ON] = GROWS | WRITES,
    [TEAR] = WRITES,                 [KILL] = OTHER | GROWS | WRITES, [TEAR_KILL] = WRITES,
};

// Set once by faults_set, before the process has threads.
static char folder[PATHS];
static enum fault fault;
static long target;
static int error_number, log_file = -1;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; // guards the two below
static long counted;
static char torn[PATHS]; // the file whose next write is refused, as on a disk that a torn write has filled


// Operations 1, 2, 3 ... that the fault `which` can meet are counted from now on, and the one of this number meets it.
// `log` is the descriptor that a line is written to: for the operation that meets it or, without a fault, for each.
void faults_set(const char *below, int which, long number, int error, int log) {
    snprintf(folder, sizeof folder, "%s", below);
    fault = which, target = number, error_number = error, log_file = log, counted = 0, torn[0] = 0;
}


static void kill_this(void) {
    kill(getpid(), SIGKILL);
    for (;;) pause();
}

static void note(long number, const char *name, enum kind kind, const char *path) {
    char line[PATHS + 128];
    const char *below = strlen(path) > strlen(folder) ? path + strlen(folder) + 1 : ".";
    int length = snprintf(line, sizeof line, "%ld\t%s\t%d\t%s\n", number, name, kind, below);
    if (log_file >= 0) syscall(SYS_write, log_file, line, length);
}

static enum answer decide(const char *name, enum kind kind, const char *path) {
    enum answer answer = GO_ON;
    pthread_mutex_lock(&lock);
    if (kind == WRITES && !strcmp(path, torn)) {
        torn[0] = 0, answer = REFUSE;
    } else if (kind & counted_kinds[fault]) {
        long number = ++counted;
        int meets = fault != NONE && (number == target || (fault == FAIL_ON && number > target));
        if (fault == NONE || (meets && number == target)) note(number, name, kind, path);
        if (meets && fault == KILL) kill_this();
        if (meets) answer = fault == TEAR || fault == TEAR_KILL ? HALF : REFUSE;
        if (meets && fault == TEAR) strcpy(torn, path);
    }
    pthread_mutex_unlock(&lock);
    if (answer == REFUSE) errno = error_number;
    return answer;
}

static int is_below(const char *path) {
    size_t length = strlen(folder);
    return length && !strncmp(path, folder, length) && (path[length] == '/' || !path[length]);
}

static int path_of(int descriptor, char *path) {
    char link[64];
    snprintf(link, sizeof link, descriptor == AT_FDCWD ? "/proc/self/cwd" : "/proc/self/fd/%d", descriptor);
    ssize_t length = syscall(SYS_readlink, link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length >= 0;
}

// What becomes of an operation on a name, which counts from the folder `at` where it is relative.
static enum answer on_name(const char *name, enum kind kind, int at, const char *path) {
    char whole[PATHS];
    if (!folder[0] || !path) return GO_ON;
    if (path[0] == '/') {
        snprintf(whole, sizeof whole, "%s", path);
    } else {
        if (!path_of(at, whole)) return GO_ON;
        size_t length = strlen(whole);
        snprintf(whole + length, sizeof whole - length, "/%s", path);
    }
    return is_below(whole) ? decide(name, kind, whole) : GO_ON;
}

static enum answer on_file(const char *name, enum kind kind, int descriptor) {
    char path[PATHS];
    return folder[0] && path_of(descriptor, path) && is_below(path) ? decide(name, kind, path) : GO_ON;
}

static int may_make(int flags) { return (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE; }

static enum answer on_open(int at, const char *path, int flags) {
    int makes = may_make(flags) && syscall(SYS_faccessat, at, path, F_OK);
    if (!may_make(flags) && !(flags & O_TRUNC) && (flags & O_ACCMODE) == O_RDONLY) return GO_ON;
    return on_name("open", makes ? GROWS : OTHER, at, path);
}

// The C library's function of this name. Threads that look it up at once find the same.
#define REAL(name)                                                                                                     \
    ({                                                                                                                 \
        static void *found;                                                                                            \
        void *function = __atomic_load_n(&found, __ATOMIC_ACQUIRE);                                                    \
        if (!function) __atomic_store_n(&found, function = dlsym(RTLD_NEXT, #name), __ATOMIC_RELEASE);                 \
        (__typeof__(&name)) function;                                                                                  \
    })

// --- files are opened. Each has a name for files of over 2 GiB, and a name for programs that check their arguments.
#define MODE(flags)                                                                                                    \
    ({                                                                                                                 \
        mode_t mode = 0;                                                                                               \
        va_list rest;                                                                                                  \
        va_start(rest, flags);                                                                                         \
        if (may_make(flags)) mode = va_arg(rest, mode_t);                                                              \
        va_end(rest);                                                                                                  \
        mode;                                                                                                          \
    })
#define OPEN(name)                                                                                                     \
    int name(const char *path, int flags, ...) {                                                                       \
        mode_t mode = MODE(flags);                                                                                     \
        return on_open(AT_FDCWD, path, flags) ? -1 : REAL(name)(path, flags, mode);                                    \
    }
#define OPENAT(name)                                                                                                   \
    int name(int at, const char *path, int flags, ...) {                                                               \
        mode_t mode = MODE(flags);                                                                                     \
        return on_open(at, path, flags) ? -1 : REAL(name)(at, path, flags, mode);                                      \
    }
#define OPEN_2(name)                                                                                                   \
    int name(const char *path, int flags) { return on_open(AT_FDCWD, path, flags) ? -1 : REAL(name)(path, flags); }
#define OPENAT_2(name)                                                                                                 \
    int name(int at, const char *path, int flags) {                                                                    \
        return on_open(at, path, flags) ? -1 : REAL(name)(at, path, flags);                                            \
    }
#define CREAT(name)                                                                                                    \
    int name(const char *path, mode_t mode) {                                                                          \
        return on_open(AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC) ? -1 : REAL(name)(path, mode);                    \
    }
#define FOPEN(name)                                                                                                    \
    FILE *name(const char *path, const char *how) {                                                                    \
        int flags = strchr(how, 'r') ? (strchr(how, '+') ? O_RDWR : O_RDONLY) : O_CREAT | O_WRONLY;                    \
        return on_open(AT_FDCWD, path, flags) ? NULL : REAL(name)(path, how);                                          \
    }
OPEN(open) OPEN(open64) OPENAT(openat) OPENAT(openat64) OPEN_2(__open_2) OPEN_2(__open64_2) OPENAT_2(__openat_2)
OPENAT_2(__openat64_2) CREAT(creat) CREAT(creat64) FOPEN(fopen) FOPEN(fopen64)

// --- bytes are written; the first half of them where a write is torn
static ssize_t after_half(ssize_t written, size_t asked) {
    if (fault == TEAR_KILL) kill_this();
    if (asked) return written;
    errno = error_number; // of a single byte there is no half
    return -1;
}
#define TEARABLE(name, descriptor, whole, half, size)                                                                  \
    {                                                                                                                  \
        enum answer answer = on_file("write", WRITES, descriptor);                                                     \
        if (answer == REFUSE) return -1;                                                                               \
        if (answer == GO_ON) return REAL(name) whole;                                                                  \
        return after_half((size) / 2 ? REAL(name) half : 0, (size) / 2);                                               \
    }
ssize_t write(int file, const void *data, size_t size)
    TEARABLE(write, file, (file, data, size), (file, data, size / 2), size)
ssize_t pwrite(int file, const void *data, size_t size, off_t at)
    TEARABLE(pwrite, file, (file, data, size, at), (file, data, size / 2, at), size)
ssize_t pwrite64(int file, const void *data, size_t size, off64_t at)
    TEARABLE(pwrite64, file, (file, data, size, at), (file, data, size / 2, at), size)
ssize_t writev(int file, const struct iovec *pieces, int number) // torn between two pieces
    TEARABLE(writev, file, (file, pieces, number), (file, pieces, number / 2), number)
ssize_t pwritev(int file, const struct iovec *pieces, int number, off_t at)
    TEARABLE(pwritev, file, (file, pieces, number, at), (file, pieces, number / 2, at), number)
ssize_t pwritev64(int file, const struct iovec *pieces, int number, off64_t at)
    TEARABLE(pwritev64, file, (file, pieces, number, at), (file, pieces, number / 2, at), number)
ssize_t sendfile(int out, int in, off_t *at, size_t size)
    TEARABLE(sendfile, out, (out, in, at, size), (out, in, at, size / 2), size)
ssize_t sendfile64(int out, int in, off64_t *at, size_t size)
    TEARABLE(sendfile64, out, (out, in, at, size), (out, in, at, size / 2), size)
ssize_t copy_file_range(int in, off64_t *from, int out, off64_t *to, size_t size, unsigned flags)
    TEARABLE(copy_file_range, out, (in, from, out, to, size, flags), (in, from, out, to, size / 2, flags), size)

// --- everything else that changes a disk
#define ON_FILE(name, kind, file, signature, arguments)                                                                \
    int name signature { return on_file(#name, kind, file) ? -1 : REAL(name) arguments; }
#define ON_NAME(name, kind, at, path, signature, arguments)                                                            \
    int name signature { return on_name(#name, kind, at, path) ? -1 : REAL(name) arguments; }

ON_FILE(fsync, OTHER, file, (int file), (file))
ON_FILE(fdatasync, OTHER, file, (int file), (file))
ON_FILE(ftruncate, OTHER, file, (int file, off_t size), (file, size))
ON_FILE(ftruncate64, OTHER, file, (int file, off64_t size), (file, size))
ON_FILE(fallocate, GROWS, file, (int file, int how, off_t at, off_t size), (file, how, at, size))
ON_FILE(fallocate64, GROWS, file, (int file, int how, off64_t at, off64_t size), (file, how, at, size))
ON_NAME(truncate, OTHER, AT_FDCWD, path, (const char *path, off_t size), (path, size))
ON_NAME(truncate64, OTHER, AT_FDCWD, path, (const char *path, off64_t size), (path, size))
ON_NAME(rename, OTHER, AT_FDCWD, new, (const char *old, const char *new), (old, new))
ON_NAME(renameat, OTHER, to, new, (int from, const char *old, int to, const char *new), (from, old, to, new))
ON_NAME(renameat2, OTHER, to, new, (int from, const char *old, int to, const char *new, unsigned how),
        (from, old, to, new, how))
ON_NAME(link, GROWS, AT_FDCWD, new, (const char *old, const char *new), (old, new))
ON_NAME(linkat, GROWS, to, new, (int from, const char *old, int to, const char *new, int how),
        (from, old, to, new, how))
ON_NAME(symlink, GROWS, AT_FDCWD, new, (const char *old, const char *new), (old, new))
ON_NAME(symlinkat, GROWS, at, new, (const char *old, int at, const char *new), (old, at, new))
ON_NAME(mkdir, GROWS, AT_FDCWD, path, (const char *path, mode_t mode), (path, mode))
ON_NAME(mkdirat, GROWS, at, path, (int at, const char *path, mode_t mode), (at, path, mode))
ON_NAME(rmdir, OTHER, AT_FDCWD, path, (const char *path), (path))
ON_NAME(unlink, OTHER, AT_FDCWD, path, (const char *path), (path))
ON_NAME(unlinkat, OTHER, at, path, (int at, const char *path, int how), (at, path, how))

int posix_fallocate(int file, off_t at, off_t size) { // returns its error
    return on_file("fallocate", GROWS, file) ? error_number : REAL(posix_fallocate)(file, at, size);
}
int posix_fallocate64(int file, off64_t at, off64_t size) {
    return on_file("fallocate", GROWS, file) ? error_number : REAL(posix_fallocate64)(file, at, size);
}
