/* In front of the C library: each call that names a path below FAILS_BELOW fails as storage does that is gone. */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int fails(int folder, const char *path)
{
    const char *below = getenv("FAILS_BELOW");
    char whole[2 * PATH_MAX], link[64];
    if (below == NULL || path == NULL)
        return 0;
    whole[0] = '\0';
    if (path[0] != '/') {
        ssize_t length = -1;
        if (folder == AT_FDCWD)
            length = getcwd(whole, PATH_MAX) == NULL ? -1 : (ssize_t)strlen(whole);
        else {
            snprintf(link, sizeof link, "/proc/self/fd/%d", folder);
            length = readlink(link, whole, PATH_MAX);
        }
        if (length < 0)
            return 0;
        whole[length] = '/';
        whole[length + 1] = '\0';
    }
    strncat(whole, path, PATH_MAX - 1);
    size_t length = strlen(below);
    if (strncmp(whole, below, length) != 0 || (whole[length] != '/' && whole[length] != '\0'))
        return 0;
    errno = atoi(getenv("FAILS_WITH"));
    return 1;
}

#define NEXT(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))
#define ONE_PATH(result, failed, name, parameters, folder, path, arguments) \
    result name parameters { return fails(folder, path) ? failed : NEXT(name) arguments; }
#define OPENING(name, folder, parameters, arguments) \
    int name parameters \
    { \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & (O_CREAT | __O_TMPFILE) ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        return fails(folder, path) ? -1 : NEXT(name) arguments; \
    }

OPENING(open, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENING(open64, AT_FDCWD, (const char *path, int flags, ...), (path, flags, mode))
OPENING(openat, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
OPENING(openat64, folder, (int folder, const char *path, int flags, ...), (folder, path, flags, mode))
ONE_PATH(DIR *, NULL, opendir, (const char *path), AT_FDCWD, path, (path))
ONE_PATH(int, -1, stat, (const char *path, struct stat *found), AT_FDCWD, path, (path, found))
ONE_PATH(int, -1, lstat, (const char *path, struct stat *found), AT_FDCWD, path, (path, found))
ONE_PATH(int, -1, stat64, (const char *path, struct stat64 *found), AT_FDCWD, path, (path, found))
ONE_PATH(int, -1, lstat64, (const char *path, struct stat64 *found), AT_FDCWD, path, (path, found))
ONE_PATH(int, -1, fstatat, (int folder, const char *path, struct stat *found, int flags), folder, path,
         (folder, path, found, flags))
ONE_PATH(int, -1, fstatat64, (int folder, const char *path, struct stat64 *found, int flags), folder, path,
         (folder, path, found, flags))
ONE_PATH(int, -1, access, (const char *path, int mode), AT_FDCWD, path, (path, mode))
ONE_PATH(int, -1, mkdir, (const char *path, mode_t mode), AT_FDCWD, path, (path, mode))
ONE_PATH(int, -1, unlink, (const char *path), AT_FDCWD, path, (path))
ONE_PATH(int, -1, rename, (const char *path, const char *other), AT_FDCWD, path, (path, other))
ONE_PATH(int, -1, link, (const char *path, const char *other), AT_FDCWD, path, (path, other))
ONE_PATH(ssize_t, -1, readlink, (const char *path, char *found, size_t size), AT_FDCWD, path, (path, found, size))
