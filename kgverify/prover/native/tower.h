// The network of the policy `two_tower` (docs/semantics.md), many goals at a time.
//
// The features of a goal are the same number at any position of any batch: every product adds up its terms in the same order.

#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "stages.h"

// The layout of this one is known to engine.py. Rows of weights are those of the safetensors file, as float64.
struct PolicyArrays {
    int64_t num_predicates, num_constants, num_variables, embedding, hidden, num_blocks;
    int64_t is_double;               // the embeddings are float64, else float32
    const void *predicates, *constants, *variables;
    const double *input_weight, *input_bias;
    const double *weights, *biases, *scales, *shifts;  // of all blocks
    double rounding;              // of a score in float32, nats
};

template <class Real> class Tower {
  public:
#ifdef __AVX512F__
    static constexpr int BYTES = 64, ROWS = 12, COLUMNS = 2;
#else
    static constexpr int BYTES = 32, ROWS = 6, COLUMNS = 2;
#endif
    static constexpr int LANES = BYTES / sizeof(Real), PANEL = LANES * COLUMNS, BLOCK = 8 * ROWS;
    typedef Real Vector __attribute__((vector_size(BYTES)));
    struct Pack {
        Vector lanes;  // an attribute of a type is lost where that is an argument of a template
    };

    explicit Tower(const PolicyArrays &policy) : policy_(policy) {
        width_ = (policy.hidden + PANEL - 1) / PANEL * COLUMNS;
        input_ = (policy.embedding + LANES - 1) / LANES;
        layers_.push_back(pack(policy.input_weight, policy.embedding, policy.input_bias));
        for (int64_t i = 0; i < policy.num_blocks; i++) {
            const int64_t h = policy.hidden;
            layers_.push_back(pack(policy.weights + i * h * h, h, policy.biases + i * h));
            layers_.back().scale = pad(policy.scales + i * h);
            layers_.back().shift = pad(policy.shifts + i * h);
        }
        mask_ = pad(nullptr);
    }

    // The vectors of the features of a goal.
    size_t width() const { return width_; }

    // Memory of one thread.
    struct Scratch {
        std::vector<Pack> embedded, x, y;
    };

    // Compute the features of goals. features: [num][width]
    void run(const Goal *goals, size_t num, Scratch &scratch, Pack *features) const {
        for (size_t first = 0; first < num; first += BLOCK) {
            const size_t size = std::min<size_t>(BLOCK, num - first), padded = (size + ROWS - 1) / ROWS * ROWS;
            scratch.embedded.assign(padded * input_, Pack{});
            for (size_t i = 0; i < size; i++) embed(goals[first + i], reinterpret_cast<Real *>(&scratch.embedded[i * input_]));
            std::vector<Pack> &x = scratch.x, &y = scratch.y;
            x.resize(padded * width_), y.resize(padded * width_);
            multiply(layers_[0], scratch.embedded.data(), input_, padded, x.data());
            for (size_t i = 1; i < layers_.size(); i++) {
                multiply(layers_[i], x.data(), width_, padded, y.data());
                for (size_t row = 0; row < size; row++) normalize(layers_[i], &x[row * width_], &y[row * width_]);
            }
            std::copy(x.begin(), x.begin() + size * width_, features + first * width_);
        }
    }

    // The score of a resolvent, from the features of the goal and its own.
    double score(const Pack *goal, const Pack *resolvent) const {
        Vector sum{};
        for (size_t i = 0; i < width_; i++) sum += goal[i].lanes * resolvent[i].lanes;
        return add_up(sum) / std::sqrt(static_cast<Real>(policy_.hidden));
    }

  private:
    struct Layer {
        size_t depth;
        std::vector<Pack> weight;  // [panel][depth][COLUMNS]
        std::vector<Pack> bias, scale, shift;
    };

    PolicyArrays policy_;
    size_t width_, input_;
    std::vector<Layer> layers_;
    std::vector<Pack> mask_;

    // Widen a vector with zeros; without one, ones.
    std::vector<Pack> pad(const double *values) const {
        std::vector<Pack> padded(width_, Pack{});
        for (int64_t i = 0; i < policy_.hidden; i++) padded[i / LANES].lanes[i % LANES] = values ? static_cast<Real>(values[i]) : 1;
        return padded;
    }

    Layer pack(const double *weight, int64_t depth, const double *bias) const {
        Layer layer{static_cast<size_t>(depth), std::vector<Pack>(width_ * depth, Pack{}), pad(bias), {}, {}};
        for (int64_t row = 0; row < policy_.hidden; row++)
            for (int64_t k = 0; k < depth; k++)
                layer.weight[(row / PANEL * depth + k) * COLUMNS + row % PANEL / LANES].lanes[row % LANES] =
                    static_cast<Real>(weight[row * depth + k]);
        return layer;
    }

    // out = in * weight + bias. in: [num][stride], out: [num][width], num a multiple of ROWS
    void multiply(const Layer &layer, const Pack *in, size_t stride, size_t num, Pack *out) const {
        for (size_t panel = 0; panel < width_ / COLUMNS; panel++) {
            const Pack *weight = &layer.weight[panel * layer.depth * COLUMNS];
            for (size_t first = 0; first < num; first += ROWS) {
                const Real *rows = reinterpret_cast<const Real *>(in + first * stride);
                Vector sums[ROWS][COLUMNS];
#pragma GCC unroll 16
                for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 16
                    for (int column = 0; column < COLUMNS; column++) sums[row][column] = layer.bias[panel * COLUMNS + column].lanes;
                for (size_t k = 0; k < layer.depth; k++)
#pragma GCC unroll 16
                    for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 16
                        for (int column = 0; column < COLUMNS; column++)
                            sums[row][column] += rows[row * stride * LANES + k] * weight[k * COLUMNS + column].lanes;
#pragma GCC unroll 16
                for (int row = 0; row < ROWS; row++)
#pragma GCC unroll 16
                    for (int column = 0; column < COLUMNS; column++)
                        out[(first + row) * width_ + panel * COLUMNS + column].lanes = sums[row][column];
            }
        }
    }

    // x = LayerNorm(x + ReLU(y))
    void normalize(const Layer &layer, Pack *x, const Pack *y) const {
        Vector sum{};
        for (size_t i = 0; i < width_; i++) {
            x[i].lanes += y[i].lanes > 0 ? y[i].lanes : Vector{};
            sum += x[i].lanes;
        }
        const Real mean = add_up(sum) / policy_.hidden;
        Vector squares{};
        for (size_t i = 0; i < width_; i++) {
            x[i].lanes = (x[i].lanes - mean) * mask_[i].lanes;
            squares += x[i].lanes * x[i].lanes;
        }
        const Real factor = 1 / std::sqrt(add_up(squares) / policy_.hidden + static_cast<Real>(1e-5));
        for (size_t i = 0; i < width_; i++) x[i].lanes = x[i].lanes * factor * layer.scale[i].lanes + layer.shift[i].lanes;
    }

    static Real add_up(const Vector &vector) {
        Real sum = 0;
        for (int i = 0; i < LANES; i++) sum += vector[i];
        return sum;
    }

    void embed(const Goal &goal, Real *out) const {
        for (size_t i = 0; i < goal.size; i++) {
            const Atom &atom = goal.atoms[i];
            add_row(policy_.predicates, policy_.num_predicates, atom.predicate, 1, out);
            add_argument(atom.first, 1, out);
            add_argument(atom.second, -1, out);
        }
        const Real divisor = static_cast<Real>(std::max<size_t>(1, goal.size));
        for (int64_t i = 0; i < policy_.embedding; i++) out[i] /= divisor;
    }

    void add_argument(int32_t term, Real sign, Real *out) const {
        if (term < 0)
            add_row(policy_.variables, policy_.num_variables, -1 - static_cast<int64_t>(term), sign, out);
        else
            add_row(policy_.constants, policy_.num_constants, term, sign, out);
    }

    // Symbols without a row, which a stranger's goal may hold, count as zeros.
    void add_row(const void *rows, int64_t num, int64_t row, Real sign, Real *out) const {
        if (row < 0 || row >= num) return;
        if (policy_.is_double)
            add(static_cast<const double *>(rows) + row * policy_.embedding, sign, out);
        else
            add(static_cast<const float *>(rows) + row * policy_.embedding, sign, out);
    }

    template <class Stored> void add(const Stored *row, Real sign, Real *out) const {
        for (int64_t i = 0; i < policy_.embedding; i++) out[i] += sign * static_cast<Real>(row[i]);
    }
};
