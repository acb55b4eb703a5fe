/* SGHMC on the 2-D Gaussian of Fig. 3, one core, every draw kept: prints seconds a chain-step. */
#include "normal.h"
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return t.tv_sec + 1e-9 * t.tv_nsec;
}

int main(int argc, char **argv) {
  long num_steps = atol(argv[1]), chains = atol(argv[2]);
  const double eta = 0.05, alpha = 0.05, beta = 0.5 * eta;
  const double a = 1 / 0.19, b = -0.9 / 0.19, scale = sqrt(2 * (alpha - beta) * eta);
  generator g;
  make_layers();
  seed(&g, 42);
  size_t size = sizeof(float) * 2 * num_steps * chains;
  float *draws = malloc(size);
  double *state = calloc(4 * chains, sizeof(double));
  memset(draws, 0, size); /* the memory is there before the clock starts */
  double start = now();
  for (long t = 0; t < num_steps; t++)
    for (long c = 0; c < chains; c++) {
      double *s = state + 4 * c, x = s[0], y = s[1];
      double gx = a * x + b * y + normal(&g), gy = b * x + a * y + normal(&g);
      s[2] += -alpha * s[2] - eta * gx + scale * normal(&g);
      s[3] += -alpha * s[3] - eta * gy + scale * normal(&g);
      s[0] += s[2];
      s[1] += s[3];
      draws[2 * (t * chains + c)] = s[0];
      draws[2 * (t * chains + c) + 1] = s[1];
    }
  double seconds = now() - start, square = 0;
  for (long i = 0; i < num_steps * chains; i++) square += draws[2 * i] * draws[2 * i];
  square /= num_steps * chains;
  if (square < 0.5 || square > 2) return 1; /* the variance is 1 */
  printf("%.6e\n", seconds / num_steps / chains);
}
