/* SGHMC on matrix factorization, MovieLens 1M's shape: prints seconds a step. */
#include "normal.h"
#include <omp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { USERS = 6040, ITEMS = 3706, RANK = 20, WIDTH = RANK + 1, RATINGS = 800000, BATCH = 4000 };
enum { SIZE = (USERS + ITEMS) * WIDTH, MOST_THREADS = 64 };
static float position[SIZE], velocity[SIZE], gradient[SIZE], rating[RATINGS];
static int user[RATINGS], item[RATINGS];
static generator generators[MOST_THREADS + 1];

static void add_gradient(generator *g) {
  const float scale = (float)RATINGS / BATCH;
  for (int n = 0; n < BATCH; n++) {
    int k = bits(g) % RATINGS;
    long i = (long)user[k] * WIDTH, j = (long)(USERS + item[k]) * WIDTH;
    float *u = position + i, *v = position + j, *du = gradient + i, *dv = gradient + j;
    float error = u[RANK] + v[RANK] - rating[k];
    for (int r = 0; r < RANK; r++) error += u[r] * v[r];
    error *= scale;
    for (int r = 0; r < RANK; r++) {
      du[r] += error * v[r];
      dv[r] += error * u[r];
    }
    du[RANK] += error;
    dv[RANK] += error;
  }
}

int main(int argc, char **argv) {
  int num_steps = atoi(argv[1]), num_threads = atoi(argv[2]);
  const float eta = 4e-7f, alpha = 0.05f, noise = sqrtf(2 * alpha * eta);
  omp_set_num_threads(num_threads < MOST_THREADS ? num_threads : MOST_THREADS);
  make_layers();
  for (int i = 0; i <= MOST_THREADS; i++) seed(&generators[i], i + 1);
  for (int k = 0; k < RATINGS; k++) {
    user[k] = USERS * pow(uniform(generators), 2);
    item[k] = ITEMS * pow(uniform(generators), 2);
    rating[k] = 0.28 * normal(generators);
  }
  for (int i = 0; i < SIZE; i++) position[i] = 0.03 * normal(generators);
  double start = omp_get_wtime();
  for (int t = 0; t < num_steps; t++) {
    memset(gradient, 0, sizeof gradient);
    add_gradient(generators);
#pragma omp parallel
    {
      generator own = generators[1 + omp_get_thread_num()];
#pragma omp for schedule(static)
      for (int i = 0; i < SIZE; i++) {
        velocity[i] += -alpha * velocity[i] - eta * (gradient[i] + position[i]) + noise * normal(&own);
        position[i] += velocity[i];
      }
      generators[1 + omp_get_thread_num()] = own;
    }
  }
  printf("%.6e\n", (omp_get_wtime() - start) / num_steps);
  return !isfinite(position[0]);
}
