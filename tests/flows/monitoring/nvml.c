/* The calls of NVML that the exporter makes, with NVIDIA's names and layouts: two devices, one of which tells little.
 * A file beside the test says what they do; it is read anew at each call. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SUCCESS 0
#define NOT_SUPPORTED 3
#define TIMEOUT 10
#define LOST 15

typedef struct { int number; } device_t;
static device_t devices[2] = {{0}, {1}};
static int told = 0;

static int says(const char *word) {
  char text[256] = "";
  FILE *file = fopen(getenv("DEVICES"), "r");
  if (file) { size_t size = fread(text, 1, sizeof text - 1, file); text[size] = 0; fclose(file); }
  return strstr(text, word) != NULL;
}

int nvmlInitWithFlags(unsigned flags) { return SUCCESS; }
int nvmlDeviceGetCount_v2(unsigned *count) {
  while (says("hangs")) usleep(10000);
  *count = 2;
  return SUCCESS;
}
static int is_lost(device_t *device) { return device->number == 0 && says("lost"); }
int nvmlDeviceGetHandleByIndex_v2(unsigned at, device_t **device) {
  *device = &devices[at];
  return is_lost(*device) ? LOST : SUCCESS;
}
int nvmlDeviceGetUUID(device_t *device, char *uuid, unsigned size) {
  if (is_lost(device)) return LOST;
  snprintf(uuid, size, "GPU-%d", device->number);
  return SUCCESS;
}
int nvmlDeviceGetName(device_t *device, char *name, unsigned size) { snprintf(name, size, "A \"device\""); return SUCCESS; }

typedef struct { unsigned gpu, memory; } use_t;
int nvmlDeviceGetUtilizationRates(device_t *device, use_t *use) {
  if (is_lost(device)) return LOST;
  use->gpu = 87; use->memory = 5; return SUCCESS;
}

typedef struct { unsigned long long total, free, used; } memory_t;
int nvmlDeviceGetMemoryInfo(device_t *device, memory_t *memory) {
  if (is_lost(device)) return LOST;
  memory->total = 80ull << 30; memory->used = 60ull << 30; memory->free = 20ull << 30;
  return SUCCESS;
}

#define OF_THE_FIRST(type, value) { if (is_lost(device)) return LOST; if (device->number) return NOT_SUPPORTED; *(type *)found = value; return SUCCESS; }
int nvmlDeviceGetTemperature(device_t *device, int sensor, void *found) OF_THE_FIRST(unsigned, 71)
int nvmlDeviceGetPowerUsage(device_t *device, void *found) OF_THE_FIRST(unsigned, 412500)
int nvmlDeviceGetTotalEnergyConsumption(device_t *device, void *found) OF_THE_FIRST(unsigned long long, 5000)
int nvmlDeviceGetCurrentClocksEventReasons(device_t *device, void *found)
  OF_THE_FIRST(unsigned long long, says("hot") ? 0x40 : 0x1)
int nvmlDeviceGetTotalEccErrors(device_t *device, int type, int counter, void *found)
  OF_THE_FIRST(unsigned long long, type == 0 ? 3 : counter == 1)

typedef struct { device_t *device; unsigned long long type, data; unsigned instance, compute; } event_t;
int nvmlEventSetCreate(void **events) { *events = &told; return says("deaf") ? NOT_SUPPORTED : SUCCESS; }
int nvmlDeviceRegisterEvents(device_t *device, unsigned long long types, void *events) {
  return device->number ? NOT_SUPPORTED : SUCCESS;
}
int nvmlEventSetWait_v2(void *events, event_t *event, unsigned timeout_ms) {
  if (!says("xid") || told == 2) return TIMEOUT;
  told++;
  *event = (event_t){&devices[0], 8, 79, ~0u, ~0u};
  return SUCCESS;
}
