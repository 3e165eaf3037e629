/* A libnvidia-ml.so.1 of two GPUs: a desktop card without serial number and MIG,
 * and one that has fallen off the bus. With FAKE_NVML_HANG it never answers. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char busid[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;

enum { OK = 0, NOT_SUPPORTED = 3, GPU_IS_LOST = 15 };

int nvmlInit_v2(void) { while (getenv("FAKE_NVML_HANG")) pause(); return OK; }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int r) { return r == GPU_IS_LOST ? "GPU is lost" : "other"; }
int nvmlSystemGetDriverVersion(char *s, unsigned n) { strncpy(s, "570.1", n); return OK; }
int nvmlSystemGetNVMLVersion(char *s, unsigned n) { strncpy(s, "12.570.1", n); return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { *n = 2; return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { *d = (void *)(long)(i + 1); return i ? GPU_IS_LOST : OK; }
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *p) { memset(p, 0, sizeof *p); p->bus = 0x3b; return OK; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { strncpy(s, "GPU-0123", n); return OK; }
int nvmlDeviceGetName(void *d, char *s, unsigned n) { strncpy(s, "Fake 4090", n); return OK; }
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) { m->total = 25757220864ULL; return OK; }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) { return NOT_SUPPORTED; }
int nvmlDeviceGetSerial(void *d, char *s, unsigned n) { return NOT_SUPPORTED; }
