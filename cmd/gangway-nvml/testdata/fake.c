/* A libnvidia-ml.so.1 of two GPUs: a desktop card without serial number and MIG, and one
 * that has fallen off the bus. It is also what an old driver is: most functions are missing.
 *
 * FAKE_NVML_HANG and FAKE_NVML_CRASH name a function that never returns, or kills the
 * process. FAKE_NVML_INIT is what nvmlInit returns. FAKE_NVML_COUNT is the number of GPUs.
 * FAKE_NVML_XID is reported once as an event. */
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

typedef struct { char legacy[16]; unsigned domain, bus, device, id, sub; char busid[32]; } pci_t;
typedef struct { unsigned long long total, free, used; } memory_t;
typedef struct { unsigned gpu, memory; } utilization_t;
typedef struct { void *device; unsigned long long type, data; unsigned gi, ci; } event_t;

enum { OK = 0, NOT_SUPPORTED = 3, NOT_FOUND = 6, TIMEOUT = 10, GPU_IS_LOST = 15 };

static int is(const char *variable, const char *name) {
	const char *value = getenv(variable);
	return value && strcmp(value, name) == 0;
}

static void enter(const char *name) {
	while (is("FAKE_NVML_HANG", name)) pause();
	if (is("FAKE_NVML_CRASH", name)) abort();
}
#define ENTER enter(__func__)

static int number(const char *variable, int otherwise) {
	return getenv(variable) ? atoi(getenv(variable)) : otherwise;
}

int nvmlInit_v2(void) { ENTER; return number("FAKE_NVML_INIT", OK); }
int nvmlShutdown(void) { return OK; }
const char *nvmlErrorString(int r) {
	switch (r) {
	case 4: return "Insufficient Permissions";
	case 9: return "Driver Not Loaded";
	case GPU_IS_LOST: return "GPU is lost";
	case 18: return "Driver/library version mismatch";
	case 999: return "\x1b[31mUnknown\xff Error";
	}
	return "other";
}
int nvmlSystemGetDriverVersion(char *s, unsigned n) { ENTER; strncpy(s, "570.1", n); return OK; }
int nvmlSystemGetNVMLVersion(char *s, unsigned n) { strncpy(s, "12.570.1", n); return OK; }
int nvmlDeviceGetCount_v2(unsigned *n) { ENTER; *n = number("FAKE_NVML_COUNT", 2); return OK; }
int nvmlDeviceGetHandleByIndex_v2(unsigned i, void **d) { ENTER; *d = (void *)(long)(i + 1); return i ? GPU_IS_LOST : OK; }
int nvmlDeviceGetHandleByUUID(const char *u, void **d) { *d = (void *)1; return strcmp(u, "GPU-0123") ? NOT_FOUND : OK; }
int nvmlDeviceGetPciInfo_v3(void *d, pci_t *p) { memset(p, 0, sizeof *p); p->bus = 0x3b; return OK; }
int nvmlDeviceGetUUID(void *d, char *s, unsigned n) { strncpy(s, "GPU-0123", n); return OK; }
int nvmlDeviceGetName(void *d, char *s, unsigned n) { ENTER; strncpy(s, "Fake \x1b[31m4090", n); return OK; }
int nvmlDeviceGetMemoryInfo(void *d, memory_t *m) { m->total = 25757220864ULL; m->free = m->total - 1024; m->used = 1024; return OK; }
int nvmlDeviceGetMigMode(void *d, unsigned *now, unsigned *next) { return NOT_SUPPORTED; }
int nvmlDeviceGetSerial(void *d, char *s, unsigned n) { return NOT_SUPPORTED; }
int nvmlDeviceGetUtilizationRates(void *d, utilization_t *u) { u->gpu = 42; u->memory = 7; return OK; }
int nvmlDeviceGetTotalEnergyConsumption(void *d, unsigned long long *mj) { static unsigned long long used = 5000; *mj = used += 1500; return OK; }
int nvmlDeviceGetTemperature(void *d, int sensor, unsigned *t) { ENTER; *t = 55; return OK; }

int nvmlEventSetCreate(void **set) { *set = (void *)1; return OK; }
int nvmlDeviceGetSupportedEventTypes(void *d, unsigned long long *t) { *t = 0xff; return OK; }
int nvmlDeviceRegisterEvents(void *d, unsigned long long t, void *set) { return t == 11 ? OK : NOT_SUPPORTED; }
int nvmlEventSetWait_v2(void *set, event_t *e, unsigned ms) {
	static int told;
	ENTER;
	if (getenv("FAKE_NVML_XID") && !told++) {
		memset(e, 0, sizeof *e);
		e->device = (void *)1; e->type = 8; e->data = number("FAKE_NVML_XID", 0);
		return OK;
	}
	usleep(ms * 1000);
	return TIMEOUT;
}
