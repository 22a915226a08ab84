/* How many fp32 operations a core can do: multiply-adds on registers alone, timed by the process's own CPU time.
   fma_peak SECONDS prints GFLOP per CPU second. */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#if defined(__AVX512F__)
#define BYTES 64
#elif defined(__AVX__)
#define BYTES 32
#else
#define BYTES 16
#endif
#if defined(__aarch64__)
#define KEEP "+w"
#else
#define KEEP "+x"
#endif
typedef float vector __attribute__((vector_size(BYTES)));
enum { LANES = BYTES / sizeof(float), CHAINS = 12, TURNS = 1 << 20 };

static double cpu_seconds(void)
{
    struct timespec now;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}

/* Twelve chains hide the latency of two units of four cycles, and leave registers for the factors. */
static vector turn(vector a, vector b)
{
    vector c0 = a, c1 = a, c2 = a, c3 = a, c4 = a, c5 = a, c6 = a, c7 = a, c8 = a, c9 = a, c10 = a, c11 = a;
    for (int i = 0; i < TURNS; i++) {
        c0 = c0 * a + b; c1 = c1 * a + b; c2 = c2 * a + b; c3 = c3 * a + b;
        c4 = c4 * a + b; c5 = c5 * a + b; c6 = c6 * a + b; c7 = c7 * a + b;
        c8 = c8 * a + b; c9 = c9 * a + b; c10 = c10 * a + b; c11 = c11 * a + b;
        /* stay in registers, and be computed one turn after the other */
        __asm__ volatile("" : KEEP(c0), KEEP(c1), KEEP(c2), KEEP(c3), KEEP(c4), KEEP(c5));
        __asm__ volatile("" : KEEP(c6), KEEP(c7), KEEP(c8), KEEP(c9), KEEP(c10), KEEP(c11));
    }
    return c0 + c1 + c2 + c3 + c4 + c5 + c6 + c7 + c8 + c9 + c10 + c11;
}

int main(int argc, char **argv)
{
    double wanted = argc > 1 ? atof(argv[1]) : 1.0, spent, turns = 0;
    vector a, b, sum = {0};
    for (int lane = 0; lane < LANES; lane++) { a[lane] = 0.999f + argc * 1e-9f; b[lane] = 1e-3f; }
    double began = cpu_seconds();
    do {
        sum += turn(a, b);
        turns++;
        spent = cpu_seconds() - began;
    } while (spent < wanted);
    printf("%.2f %g\n", turns * TURNS * CHAINS * LANES * 2 / spent * 1e-9, (double)sum[0]);
    return 0;
}
