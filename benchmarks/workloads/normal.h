/* Standard normals as fast as one core makes them: xoshiro256++ and a ziggurat of 256 layers. */
#include <math.h>
#include <stdint.h>

typedef struct {
  uint64_t word[4];
  char apart[96]; /* generators of different threads never share a cache line */
} generator;

static inline uint64_t rotated(uint64_t x, int k) { return (x << k) | (x >> (64 - k)); }

static inline uint64_t bits(generator *g) {
  uint64_t *w = g->word, result = rotated(w[0] + w[3], 23) + w[0], t = w[1] << 17;
  w[2] ^= w[0];
  w[3] ^= w[1];
  w[1] ^= w[2];
  w[0] ^= w[3];
  w[2] ^= t;
  w[3] = rotated(w[3], 45);
  return result;
}

static void seed(generator *g, uint64_t z) {
  for (int i = 0; i < 4; i++) { /* splitmix64 */
    uint64_t x = (z += 0x9e3779b97f4a7c15ULL);
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
    g->word[i] = x ^ (x >> 31);
  }
}

static inline double uniform(generator *g) { return ((bits(g) >> 11) + 0.5) * 0x1p-53; }

#define LAYERS 256
static const double EDGE = 3.6541528853610088, AREA = 0.00492867323399;
static double width[LAYERS + 1], height[LAYERS + 1], inner[LAYERS];

static void make_layers(void) {
  double density = exp(-0.5 * EDGE * EDGE);
  width[0] = AREA / density;
  width[1] = EDGE;
  height[1] = density;
  for (int i = 2; i < LAYERS; i++) {
    width[i] = sqrt(-2 * log(AREA / width[i - 1] + height[i - 1]));
    height[i] = exp(-0.5 * width[i] * width[i]);
  }
  width[LAYERS] = 0;
  height[LAYERS] = 1;
  for (int i = 0; i < LAYERS; i++) inner[i] = width[i + 1] / width[i];
}

static double seldom(generator *g, int layer, double u) {
  for (;;) {
    double x = u * width[layer];
    if (fabs(u) < inner[layer]) return x;
    if (layer == 0) {
      double a, b;
      do {
        a = -log(uniform(g)) / EDGE;
        b = -log(uniform(g));
      } while (2 * b < a * a);
      return u < 0 ? -(EDGE + a) : EDGE + a;
    }
    double floor = height[layer], top = height[layer + 1];
    if (floor + uniform(g) * (top - floor) < exp(-0.5 * x * x)) return x;
    uint64_t r = bits(g);
    layer = r & 255;
    u = ((int64_t)r >> 11) * 0x1p-52;
  }
}

static inline double normal(generator *g) {
  uint64_t r = bits(g);
  int layer = r & 255;
  double u = ((int64_t)r >> 11) * 0x1p-52;
  return __builtin_expect(fabs(u) < inner[layer], 1) ? u * width[layer] : seldom(g, layer, u);
}
