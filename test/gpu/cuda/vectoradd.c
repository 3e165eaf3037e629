// Adds two vectors on GPU 0 through CUDA's driver library, which it loads as programs do
// that were built without it, checks the sum, and says how long an addition takes.
// Usage: vectoradd ELEMENTS ADDITIONS
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef unsigned long long devptr;

static void *library;

static void *function(const char *name)
{
	void *f = dlsym(library, name);
	if (!f) {
		fprintf(stderr, "vectoradd: %s is not in libcuda.so.1: %s\n", name, dlerror());
		exit(1);
	}
	return f;
}

static void check(int code, const char *what)
{
	const char *text = 0;
	if (code == 0)
		return;
	((int (*)(int, const char **))function("cuGetErrorString"))(code, &text);
	fprintf(stderr, "vectoradd: %s: error %d: %s\n", what, code, text ? text : "?");
	exit(1);
}

#define CALL(name, types, ...) check(((int(*) types)function(#name))(__VA_ARGS__), #name)

// The oldest GPUs that newer drivers still compile for come first.
static const char *targets[] = {".version 6.3\n.target sm_75\n", ".version 5.0\n.target sm_50\n"};

static const char kernel[] =
	".address_size 64\n"
	".visible .entry vectoradd(.param .u64 pa, .param .u64 pb, .param .u64 pc, .param .u32 pn)\n"
	"{\n"
	"	.reg .pred %p1;\n"
	"	.reg .b32 %r<6>;\n"
	"	.reg .f32 %f<4>;\n"
	"	.reg .b64 %rd<11>;\n"
	"	ld.param.u64 %rd1, [pa];\n"
	"	ld.param.u64 %rd2, [pb];\n"
	"	ld.param.u64 %rd3, [pc];\n"
	"	ld.param.u32 %r1, [pn];\n"
	"	mov.u32 %r2, %ctaid.x;\n"
	"	mov.u32 %r3, %ntid.x;\n"
	"	mov.u32 %r4, %tid.x;\n"
	"	mad.lo.s32 %r5, %r2, %r3, %r4;\n"
	"	setp.ge.u32 %p1, %r5, %r1;\n"
	"	@%p1 bra done;\n"
	"	cvta.to.global.u64 %rd4, %rd1;\n"
	"	cvta.to.global.u64 %rd5, %rd2;\n"
	"	cvta.to.global.u64 %rd6, %rd3;\n"
	"	mul.wide.u32 %rd7, %r5, 4;\n"
	"	add.s64 %rd8, %rd4, %rd7;\n"
	"	add.s64 %rd9, %rd5, %rd7;\n"
	"	add.s64 %rd10, %rd6, %rd7;\n"
	"	ld.global.f32 %f1, [%rd8];\n"
	"	ld.global.f32 %f2, [%rd9];\n"
	"	add.f32 %f3, %f1, %f2;\n"
	"	st.global.f32 [%rd10], %f3;\n"
	"done:\n"
	"	ret;\n"
	"}\n";

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static void *add_kernel(void)
{
	void *module = 0, *f = 0;
	char text[sizeof kernel + 64];
	int code = 1;
	for (unsigned i = 0; code && i < sizeof targets / sizeof *targets; i++) {
		snprintf(text, sizeof text, "%s%s", targets[i], kernel);
		code = ((int (*)(void **, const void *))function("cuModuleLoadData"))(&module, text);
	}
	check(code, "cuModuleLoadData");
	CALL(cuModuleGetFunction, (void **, void *, const char *), &f, module, "vectoradd");
	return f;
}

// What is measured is cut in so many parts, of which the median is taken.
enum { CHUNKS = 11 };

static int by_size(const void *a, const void *b)
{
	return (*(const double *)a > *(const double *)b) - (*(const double *)a < *(const double *)b);
}

// additions adds the vectors some times and returns how long that took, in seconds.
static double additions(void *launch, void *f, void **args, unsigned n, unsigned times)
{
	typedef int kernel_start(void *, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void *, void **, void **);
	double began = now();
	for (unsigned i = 0; i < times; i++)
		check(((kernel_start *)launch)(f, (n + 255) / 256, 1, 1, 256, 1, 1, 0, 0, args, 0), "cuLaunchKernel");
	CALL(cuCtxSynchronize, (void), );
	return now() - began;
}

int main(int argc, char **argv)
{
	unsigned n = argc > 1 ? (unsigned)atol(argv[1]) : 1 << 20, times = argc > 2 ? (unsigned)atol(argv[2]) : 100;
	int device = 0, count = 0;
	unsigned char id[16];
	char name[256] = "";
	void *context = 0;
	devptr d[3];
	if (!(library = dlopen("libcuda.so.1", RTLD_NOW))) {
		fprintf(stderr, "vectoradd: %s\n", dlerror());
		return 2;
	}
	CALL(cuInit, (unsigned), 0);
	CALL(cuDeviceGetCount, (int *), &count);
	CALL(cuDeviceGet, (int *, int), &device, 0);
	CALL(cuDeviceGetUuid, (void *, int), id, device);
	CALL(cuDeviceGetName, (char *, int, int), name, sizeof name, device);
	CALL(cuDevicePrimaryCtxRetain, (void **, int), &context, device);
	CALL(cuCtxSetCurrent, (void *), context);
	void *f = add_kernel();

	size_t bytes = (size_t)n * sizeof(float);
	float *a = malloc(bytes), *b = malloc(bytes), *c = calloc(n, sizeof(float));
	if (!a || !b || !c)
		return 1;
	for (unsigned i = 0; i < n; i++) {
		a[i] = (float)(i % 1000);
		b[i] = (float)(i % 77) * 2;
	}
	for (int i = 0; i < 3; i++)
		CALL(cuMemAlloc_v2, (devptr *, size_t), &d[i], bytes);
	CALL(cuMemcpyHtoD_v2, (devptr, const void *, size_t), d[0], a, bytes);
	CALL(cuMemcpyHtoD_v2, (devptr, const void *, size_t), d[1], b, bytes);

	void *args[] = {&d[0], &d[1], &d[2], &n};
	double took[CHUNKS];
	additions(function("cuLaunchKernel"), f, args, n, 1);
	// Until the clocks are up, for a measurement.
	for (double began = now(); times >= 100 && now() - began < 0.3;)
		additions(function("cuLaunchKernel"), f, args, n, times / CHUNKS + 1);
	for (int i = 0; i < CHUNKS; i++)
		took[i] = additions(function("cuLaunchKernel"), f, args, n, times / CHUNKS + 1);
	qsort(took, CHUNKS, sizeof *took, by_size);
	CALL(cuMemcpyDtoH_v2, (void *, devptr, size_t), c, d[2], bytes);
	for (unsigned i = 0; i < n; i++)
		if (c[i] != a[i] + b[i]) {
			fprintf(stderr, "vectoradd: element %u is %g, not %g\n", i, c[i], a[i] + b[i]);
			return 1;
		}
	printf("devices=%d\nname=%s\nuuid=GPU-", count, name);
	for (int i = 0; i < 16; i++)
		printf(i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", id[i]);
	printf("\naddition_us=%.3f\n", 1e6 * took[CHUNKS / 2] / (times / CHUNKS + 1));
	return 0;
}
