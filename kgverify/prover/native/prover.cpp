// The native evaluator: derivations side by side on several threads, and its plain C interface, which engine.py calls.

#include <atomic>
#include <cstring>
#include <memory>
#include <system_error>
#include <thread>

#include "shared.h"
#include "stages.h"
#include "tower.h"

namespace {

constexpr size_t SIDE_BY_SIDE = 32;  // derivations of a thread whose resolvents are scored together
constexpr int64_t LEAST_SHARED = 256;  // candidates that several threads do not divide, since they share derivations

struct StepRow {
    uint16_t depth, num_atoms;
    uint32_t num_resolvents, dropped_atoms, dropped_resolvents;
    int32_t choice;
    int8_t outcome;
    uint64_t digest;
};

// The steps of a derivation, for a recorder.
struct Log {
    std::vector<StepRow> steps;
    std::vector<Atom> goal_atoms, atoms;
    std::vector<Resolvent> resolvents;
};

enum Recording : int32_t { NOTHING, DIGESTS, EVERYTHING };

// Positions in derivations from which one step is taken, as in `kgverify.engines.protocol.Positions`.
struct PositionArrays {
    const int64_t *depth, *goal_start, *atom_start;
    const Atom *atoms;
};

struct Gaps {
    int64_t num_choices = 0, num_rescored = 0;
    double smallest = std::numeric_limits<double>::infinity();
};

struct Run {
    std::vector<Ending> endings;
    std::vector<Log> logs;
    Probe probe;
    Gaps gaps;
};

struct Engine {
    Program program;
    Limits limits;
    double rounding = 0;
    std::unique_ptr<const Tower<float>> fast;
    std::unique_ptr<const Tower<double>> exact;
};

using Features = std::vector<Tower<float>::Pack>;

struct Slot {
    Derivation derivation;
    Step step;
    Log log;
    Features feature;  // of the current goal; empty if unknown
    size_t first_row;
};

// The work of one thread.
class Worker {
  public:
    Worker(const Engine &engine, Run &run, const Atom *queries, const double *floor, const PositionArrays *positions,
           int64_t num, Recording recording, bool is_probed)
        : engine_(engine), run_(run), queries_(queries), floor_(floor), positions_(positions), num_(num), recording_(recording),
          probe_(is_probed ? &run.probe : nullptr), expansion_(engine.program, engine.limits, recording != NOTHING),
          slots_(engine.fast ? SIDE_BY_SIDE : 1) {}

    Gaps gaps;

    void work(std::atomic<int64_t> &next) {
        for (Slot &slot : slots_) begin(slot, next);
        for (;;) {
            bool is_running = false;
            for (Slot &slot : slots_) {
                if (slot.derivation.candidate < 0) continue;
                is_running = true;
                expansion_.expand(slot.derivation, slot.step, probe_);
            }
            if (!is_running) return;
            score();
            for (Slot &slot : slots_)
                if (slot.derivation.candidate >= 0) take(slot, next);
        }
    }

    void share(const std::vector<Unit> &units, std::atomic<int64_t> &next) {
        Sharing sharing(engine_.program, engine_.limits, queries_, floor_, run_.endings);
        const auto end = static_cast<int64_t>(units.size());
        for (int64_t i = next.fetch_add(1); i < end; i = next.fetch_add(1)) sharing.prove(units[i]);
    }

  private:
    const Engine &engine_;
    Run &run_;
    const Atom *queries_;
    const double *floor_;
    const PositionArrays *positions_;
    const int64_t num_;
    const Recording recording_;
    Probe *const probe_;
    Expansion expansion_;
    std::vector<Slot> slots_;
    Tower<float>::Scratch fast_scratch_;
    Tower<double>::Scratch exact_scratch_;
    std::vector<Goal> goals_;
    Features features_;

    // Give the next candidate to a slot; `recycle`.
    void begin(Slot &slot, std::atomic<int64_t> &next) {
        const int64_t candidate = next.fetch_add(1);
        if (candidate >= num_) {
            slot.derivation.candidate = -1;
            return;
        }
        Derivation &derivation = slot.derivation;
        const Atom query = queries_[candidate];
        derivation.begin(candidate, query);
        slot.feature.clear();
        slot.log = Log();
        if (positions_) {
            for (int64_t goal = positions_->goal_start[candidate]; goal < positions_->goal_start[candidate + 1]; goal++) {
                const int64_t first = positions_->atom_start[goal], end = positions_->atom_start[goal + 1];
                derivation.visit({positions_->atoms + first, static_cast<size_t>(end - first)});
            }
            derivation.depth = positions_->depth[candidate];
            return;
        }
        // A variable of a query is numbered by first appearance, as in any goal.
        Atom goal = query;
        if (goal.second < 0) goal.second = goal.second == goal.first ? -1 : goal.first < 0 ? -2 : -1;
        if (goal.first < 0) goal.first = -1;
        derivation.visit({&goal, 1});
    }

    void score() {
        if (!engine_.fast) {
            for (Slot &slot : slots_)
                if (slot.derivation.candidate >= 0 && slot.step.kind == GOAL)
                    for (Resolvent &resolvent : slot.step.resolvents) resolvent.score = score_shortest(resolvent);
            return;
        }
        goals_.clear();
        for (Slot &slot : slots_) {
            if (slot.derivation.candidate < 0 || slot.step.kind != GOAL) continue;
            slot.first_row = goals_.size();
            for (const Resolvent &resolvent : slot.step.resolvents) goals_.push_back(slot.step.goal_of(resolvent));
            if (slot.feature.empty()) goals_.push_back(slot.derivation.goal());
        }
        const size_t width = engine_.fast->width();
        features_.resize(goals_.size() * width);
        engine_.fast->run(goals_.data(), goals_.size(), fast_scratch_, features_.data());
        for (Slot &slot : slots_) {
            if (slot.derivation.candidate < 0 || slot.step.kind != GOAL) continue;
            const auto *rows = &features_[slot.first_row * width];
            const size_t num = slot.step.resolvents.size();
            if (slot.feature.empty()) slot.feature.assign(rows + num * width, rows + (num + 1) * width);
            for (size_t i = 0; i < num; i++)
                slot.step.resolvents[i].score = engine_.fast->score(slot.feature.data(), rows + i * width);
            score_again(slot);
        }
    }

    // Score in float64 the resolvents whose scores are too close to the highest one for float32, unless they are all equal.
    void score_again(Slot &slot) {
        Step &step = slot.step;
        if (step.resolvents.size() < 2) return;
        const Resolvent &best = step.resolvents[choose(step)];
        const double highest = best.score;
        const Goal winner = step.goal_of(best);
        double second = -std::numeric_limits<double>::infinity();
        for (const Resolvent &resolvent : step.resolvents)
            if (!(step.goal_of(resolvent) == winner)) second = std::max(second, resolvent.score);
        gaps.num_choices++;
        gaps.smallest = std::min(gaps.smallest, highest - second);
        const double margin = 2 * engine_.rounding;
        if (highest - second > margin) return;
        gaps.num_rescored++;
        std::vector<Goal> goals{slot.derivation.goal()};
        std::vector<Resolvent *> close;
        for (Resolvent &resolvent : step.resolvents) {
            if (resolvent.score < highest - margin) continue;
            close.push_back(&resolvent);
            goals.push_back(step.goal_of(resolvent));
        }
        const size_t width = engine_.exact->width();
        std::vector<Tower<double>::Pack> features(goals.size() * width);
        engine_.exact->run(goals.data(), goals.size(), exact_scratch_, features.data());
        for (size_t i = 0; i < close.size(); i++) close[i]->score = engine_.exact->score(features.data(), &features[(i + 1) * width]);
    }

    void take(Slot &slot, std::atomic<int64_t> &next) {
        Derivation &derivation = slot.derivation;
        Step &step = slot.step;
        step.choice = choose(step);
        const Outcome outcome = finish(engine_.limits, step, derivation.depth + 1);
        if (recording_ != NOTHING) record(slot, outcome);
        advance(derivation, step);
        derivation.outcome = outcome;
        if (engine_.fast && step.kind == GOAL) {
            const auto *chosen = &features_[(slot.first_row + step.choice) * engine_.fast->width()];
            slot.feature.assign(chosen, chosen + engine_.fast->width());
        }
        int8_t ended = outcome;
        if (outcome == OPEN && floor_ && derivation.log_probability < floor_[derivation.candidate]) ended = STOPPED;
        if (ended == OPEN && !positions_) return;
        run_.endings[derivation.candidate] = {ended, derivation.is_limited, derivation.log_probability};
        if (recording_ != NOTHING) run_.logs[derivation.candidate] = std::move(slot.log);
        begin(slot, next);
    }

    void record(Slot &slot, Outcome outcome) {
        const Derivation &derivation = slot.derivation;
        const Step &step = slot.step;
        const Goal goal = derivation.goal();
        const uint64_t digest = digest_step(goal, step, derivation.depth, outcome);
        if (recording_ == DIGESTS) {
            // The other columns would count rows that are not recorded.
            slot.log.steps.push_back({0, 0, 0, 0, 0, 0, 0, digest});
            return;
        }
        slot.log.steps.push_back({static_cast<uint16_t>(derivation.depth), static_cast<uint16_t>(goal.size),
                                  static_cast<uint32_t>(step.resolvents.size()), static_cast<uint32_t>(step.dropped_atoms),
                                  static_cast<uint32_t>(step.dropped_resolvents), static_cast<int32_t>(step.choice),
                                  outcome, digest});
        Log &log = slot.log;
        log.goal_atoms.insert(log.goal_atoms.end(), goal.atoms, goal.atoms + goal.size);
        log.resolvents.insert(log.resolvents.end(), step.resolvents.begin(), step.resolvents.end());
        log.atoms.insert(log.atoms.end(), step.atoms.begin(), step.atoms.end());
    }
};

// Where `native_copy` writes the columns of a run; the layout is known to engine.py.
struct ColumnArrays {
    uint32_t *num_steps;
    int8_t *outcome;
    uint8_t *is_limited;
    double *log_probability;
    uint16_t *depth, *num_atoms;
    uint32_t *num_resolvents, *dropped_atoms, *dropped_resolvents;
    int32_t *choice;
    int8_t *step_outcome;
    Atom *goal_atoms;
    uint64_t *digest;
    uint8_t *kind;
    uint16_t *resolvent_num_atoms;
    uint8_t *origin_kind;
    int32_t *origin;
    double *score;
    Atom *atoms;
};

template <class Value> void append(Value *&out, const std::vector<Value> &values) {
    std::copy(values.begin(), values.end(), out);
    out += values.size();
}

}  // namespace

extern "C" {

Engine *native_make(const ProgramArrays *program, const Limits *limits, const PolicyArrays *policy) noexcept try {
    auto engine = std::make_unique<Engine>(Engine{Program(*program), *limits, 0, nullptr, nullptr});
    if (policy) {
        engine->rounding = policy->rounding;
        engine->fast = std::make_unique<Tower<float>>(*policy);
        engine->exact = std::make_unique<Tower<double>>(*policy);
    }
    return engine.release();
} catch (...) {
    return nullptr;
}

void native_free(Engine *engine) noexcept { delete engine; }

// Prove candidates, each down to its floor if there are floors, or take one step from each position; null if memory runs out.
Run *native_run(const Engine *engine, const Atom *queries, int64_t num, const double *floor, const PositionArrays *positions,
                int32_t recording, int32_t is_probed, int64_t num_threads) noexcept try {
    auto run = std::make_unique<Run>();
    run->endings.resize(num);
    if (recording != NOTHING) run->logs.resize(num);
    std::atomic<int64_t> next{0};
    std::atomic<bool> has_failed{false};
    std::vector<std::unique_ptr<Worker>> workers;
    for (int64_t i = 0; i < num_threads; i++)
        workers.push_back(std::make_unique<Worker>(*engine, *run, queries, floor, positions, num,
                                                   static_cast<Recording>(recording), is_probed != 0));
    const bool is_shared = !engine->fast && recording == NOTHING && !positions && std::all_of(queries, queries + num, is_ground);
    std::vector<Unit> units;
    if (is_shared) units = cut_units(queries, num, std::max(LEAST_SHARED, num / num_threads + 1));
    const auto work = [&](Worker &worker) noexcept {
        try {
            if (is_shared) worker.share(units, next);
            else worker.work(next);
        } catch (...) {
            has_failed = true;
            // The others end with the candidates that they have.
            next = num;
        }
    };
    std::vector<std::thread> threads;
    try {
        for (int64_t i = 1; i < num_threads; i++) threads.emplace_back(work, std::ref(*workers[i]));
    } catch (const std::system_error &) {
        // Fewer threads do the same work.
    }
    work(*workers[0]);
    for (std::thread &thread : threads) thread.join();
    if (has_failed) return nullptr;
    for (const auto &worker : workers) {
        run->gaps.num_choices += worker->gaps.num_choices;
        run->gaps.num_rescored += worker->gaps.num_rescored;
        run->gaps.smallest = std::min(run->gaps.smallest, worker->gaps.smallest);
    }
    return run.release();
} catch (...) {
    return nullptr;
}

void native_free_run(Run *run) noexcept { delete run; }

// Count steps, atoms of goals, resolvents, atoms of resolvents; clauses and atoms of a probe; choices, and those made again.
void native_count(const Run *run, int64_t *counts, double *smallest_gap) noexcept {
    std::fill(counts, counts + 8, 0);
    for (const Log &log : run->logs) {
        counts[0] += log.steps.size();
        counts[1] += log.goal_atoms.size();
        counts[2] += log.resolvents.size();
        counts[3] += log.atoms.size();
    }
    counts[4] = run->probe.tried.size();
    counts[5] = run->probe.atoms.size();
    counts[6] = run->gaps.num_choices;
    counts[7] = run->gaps.num_rescored;
    *smallest_gap = run->gaps.smallest;
}

void native_copy(const Run *run, const ColumnArrays *columns) noexcept {
    ColumnArrays out = *columns;
    for (const Ending &ending : run->endings) {
        *out.outcome++ = ending.outcome;
        *out.is_limited++ = ending.is_limited;
        *out.log_probability++ = ending.log_probability;
    }
    for (const Log &log : run->logs) {
        *out.num_steps++ = static_cast<uint32_t>(log.steps.size());
        for (const StepRow &row : log.steps) {
            *out.depth++ = row.depth;
            *out.num_atoms++ = row.num_atoms;
            *out.num_resolvents++ = row.num_resolvents;
            *out.dropped_atoms++ = row.dropped_atoms;
            *out.dropped_resolvents++ = row.dropped_resolvents;
            *out.choice++ = row.choice;
            *out.step_outcome++ = row.outcome;
            *out.digest++ = row.digest;
        }
        for (const Resolvent &resolvent : log.resolvents) {
            *out.kind++ = resolvent.kind;
            *out.resolvent_num_atoms++ = resolvent.num_atoms;
            *out.origin_kind++ = resolvent.origin_kind;
            *out.origin++ = resolvent.origin;
            *out.score++ = resolvent.score;
        }
        append(out.goal_atoms, log.goal_atoms);
        append(out.atoms, log.atoms);
    }
}

void native_copy_probe(const Run *run, Tried *tried, Atom *atoms) noexcept {
    append(tried, run->probe.tried);
    append(atoms, run->probe.atoms);
}
}
