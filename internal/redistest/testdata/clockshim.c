/* A clock that can be set. Preloaded into a redis-server, it adds the microseconds
 * in the file named by REDISTEST_CLOCK, a native 64-bit integer, to the time of day.
 * A step of a real clock leaves the monotonic clock alone, and so does this one. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *offset;

__attribute__((constructor)) static void map_offset(void) {
  const char *path = getenv("REDISTEST_CLOCK");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0) return;
  void *p = mmap(NULL, sizeof *offset, PROT_READ, MAP_SHARED, fd, 0);
  if (p != MAP_FAILED) offset = p;
  close(fd);
}

static void shift(struct timespec *t) {
  int64_t us = offset ? *offset : 0;
  int64_t ns = t->tv_nsec + us % 1000000 * 1000;
  t->tv_sec += us / 1000000 + (ns >= 1000000000) - (ns < 0);
  t->tv_nsec = ns >= 1000000000 ? ns - 1000000000 : ns < 0 ? ns + 1000000000 : ns;
}

int clock_gettime(clockid_t id, struct timespec *t) {
  static int (*real)(clockid_t, struct timespec *);
  if (!real) real = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
  int r = real(id, t);
  if (r == 0 && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) shift(t);
  return r;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
  struct timespec now;
  (void)zone;
  if (clock_gettime(CLOCK_REALTIME, &now) != 0) return -1;
  t->tv_sec = now.tv_sec;
  t->tv_usec = now.tv_nsec / 1000;
  return 0;
}

time_t time(time_t *t) {
  struct timespec now;
  clock_gettime(CLOCK_REALTIME, &now);
  if (t) *t = now.tv_sec;
  return now.tv_sec;
}
