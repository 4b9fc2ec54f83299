// The stages of a step, by the names of docs/semantics.md, for one derivation at a time. Nothing is padded.

#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <numeric>
#include <utility>
#include <vector>

struct Atom {
    int32_t predicate, first, second;  // a variable v is -1 - v
};

inline bool operator==(const Atom &a, const Atom &b) {
    return a.predicate == b.predicate && a.first == b.first && a.second == b.second;
}

constexpr int32_t OTHER = std::numeric_limits<int32_t>::max();  // a constant that no clause has (shared.h)

inline bool is_open(const Atom &atom) { return atom.first == OTHER || atom.second == OTHER; }

inline bool is_ground(const Atom &atom) { return atom.first >= 0 && atom.second >= 0; }

struct Goal {
    const Atom *atoms;
    size_t size;
};

inline bool operator==(const Goal &a, const Goal &b) {
    return a.size == b.size && std::equal(a.atoms, a.atoms + a.size, b.atoms);
}

enum Kind : uint8_t { GOAL, TRUE, FALSE };
enum Outcome : int8_t { OPEN, PROVED, FAILED, DEPTH_LIMIT };
enum OriginKind : uint8_t { NONE, RULE, FACT };

// The splitmix64 step, and the folding of words into a running digest (docs/traces.md).
inline uint64_t mix(uint64_t x) {
    x += 0x9E3779B97F4A7C15;
    x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9;
    x = (x ^ x >> 27) * 0x94D049BB133111EB;
    return x ^ x >> 31;
}

inline uint64_t word(int64_t value) { return static_cast<uint64_t>(value); }

inline uint64_t fold(uint64_t state, uint64_t value) { return mix(state ^ mix(value)); }

// The layout of these two is known to engine.py.
struct ProgramArrays {
    int64_t num_predicates, num_facts;
    const Atom *facts;             // [num_facts] ascending
    const int64_t *fact_first;     // [num_predicates + 1] where the facts of each predicate begin
    const Atom *rule_atoms;        // of all rules, each head first
    const int64_t *rule_start;     // [num_rules + 1] where the atoms of each rule begin
    const int32_t *rule_variables; // [num_rules] the number of variables of each rule
    const int32_t *rules_by_head;  // [num_rules] indices of rules, ascending by (head predicate, index)
    const int64_t *rule_first;     // [num_predicates + 1] where the rules of each head predicate begin
};

struct Limits {
    int64_t max_depth, max_atoms, max_resolvents, exclude_query;
};

// The facts of each constant in one argument, ascending: a search reads facts of that constant alone, however many others exist.
class ArgumentIndex {
  public:
    struct Entry {
        int32_t predicate, other;  // the other argument
        int32_t fact;
    };
    struct Range {
        const Entry *first, *last;
        size_t size() const { return last - first; }
        const Entry *begin() const { return first; }
        const Entry *end() const { return last; }
    };

    ArgumentIndex(const ProgramArrays &program, int32_t Atom::*argument, int32_t Atom::*other) : entries_(program.num_facts) {
        int32_t highest = -1;
        for (int64_t i = 0; i < program.num_facts; i++) highest = std::max(highest, program.facts[i].*argument);
        ends_.assign(static_cast<size_t>(highest) + 2, 0);
        for (int64_t i = 0; i < program.num_facts; i++) ends_[program.facts[i].*argument + 1]++;
        // Each begins where the one before it ends, and grows by its own facts, in their order.
        std::partial_sum(ends_.begin(), ends_.end(), ends_.begin());
        for (int64_t i = 0; i < program.num_facts; i++) {
            const Atom &fact = program.facts[i];
            entries_[ends_[fact.*argument]++] = {fact.predicate, fact.*other, static_cast<int32_t>(i)};
        }
    }

    Range of(int32_t constant) const {
        if (static_cast<size_t>(constant) + 1 >= ends_.size()) return {nullptr, nullptr};
        const Entry *entries = entries_.data();
        return {entries + (constant ? ends_[constant - 1] : 0), entries + ends_[constant]};
    }

    // The first entry that is not below a predicate and an argument.
    static const Entry *search(const Range &range, int64_t predicate, int32_t other) {
        const auto is_below = [=](const Entry &entry, int) {
            return entry.predicate < predicate || (entry.predicate == predicate && entry.other < other);
        };
        return std::lower_bound(range.first, range.last, 0, is_below);
    }

  private:
    std::vector<int32_t> ends_;  // of each constant's entries
    std::vector<Entry> entries_;
};

class Program : public ProgramArrays {
  public:
    explicit Program(const ProgramArrays &arrays)
        : ProgramArrays(arrays), by_first_(arrays, &Atom::first, &Atom::second),
          by_second_(arrays, &Atom::second, &Atom::first) {
        size_t num_words = 1;
        while (num_words < static_cast<size_t>(num_facts) / 4) num_words *= 2;
        filter_.assign(num_words, 0);
        for (int64_t i = 0; i < num_facts; i++) {
            const uint64_t hash = hash_of(facts[i]);
            filter_[hash >> 6 & (num_words - 1)] |= uint64_t{1} << (hash & 63);
        }
    }

    // The index of a fact; -1 for an atom that is none.
    int64_t find_fact(const Atom &atom) const {
        const uint64_t hash = hash_of(atom);
        if (!(filter_[hash >> 6 & (filter_.size() - 1)] >> (hash & 63) & 1)) return -1;
        const ArgumentIndex::Range of_first = by_first_.of(atom.first), of_second = by_second_.of(atom.second);
        const bool is_by_first = of_first.size() <= of_second.size();
        const auto range = is_by_first ? of_first : of_second;
        const int32_t other = is_by_first ? atom.second : atom.first;
        const auto *found = ArgumentIndex::search(range, atom.predicate, other);
        return found != range.last && found->predicate == atom.predicate && found->other == other ? found->fact : -1;
    }

    // The facts that have the predicate of an atom and its only constant.
    ArgumentIndex::Range find_facts(const Atom &atom) const {
        const auto range = atom.first >= 0 ? by_first_.of(atom.first) : by_second_.of(atom.second);
        const auto *first = ArgumentIndex::search(range, atom.predicate, 0);
        return {first, ArgumentIndex::search({first, range.last}, int64_t{atom.predicate} + 1, 0)};
    }

    bool has_clauses(const Atom &atom) const { return atom.predicate >= 0 && atom.predicate < num_predicates; }

  private:
    ArgumentIndex by_first_, by_second_;
    std::vector<uint64_t> filter_;  // the bits of all facts: most atoms that are none are not searched

    static uint64_t hash_of(const Atom &atom) {
        const uint64_t state = word(atom.predicate) * 0x9E3779B97F4A7C15 ^ word(atom.first);
        return ((state ^ state >> 31) * 0xBF58476D1CE4E5B9 ^ word(atom.second)) * 0x94D049BB133111EB >> 20;
    }
};

struct Resolvent {
    uint8_t kind, origin_kind;
    uint16_t num_atoms;
    int32_t origin;
    int32_t num_variables;
    size_t first_atom;
    double score;
};

// One clause that matched, for a probe: its resolvent as `resolve`, `prune` and `rename` left it, and whether `revisit` kept it.
struct Tried {
    uint8_t origin_kind, is_left;
    int32_t origin, num_resolved, num_pruned;
};

struct Probe {
    std::vector<Tried> tried;
    std::vector<Atom> atoms;  // of each: resolved, pruned, renamed
};

// A derivation between two steps. The current goal is the last one visited.
struct Derivation {
    int64_t candidate = -1;
    Atom query{};
    std::vector<Atom> atoms;       // of the goals visited
    std::vector<size_t> starts;    // of each of them, and the end
    std::vector<uint64_t> hashes;  // of each of them
    int64_t depth = 0;
    Outcome outcome = OPEN;
    bool is_limited = false;
    double log_probability = 0;

    Goal goal() const {
        const size_t first = starts[starts.size() - 2];
        return {atoms.data() + first, starts.back() - first};
    }

    static uint64_t hash_of(const Goal &goal) {
        uint64_t state = goal.size;
        for (size_t i = 0; i < goal.size; i++) {
            const Atom &atom = goal.atoms[i];
            state = (state ^ word(atom.predicate)) * 0xBF58476D1CE4E5B9;
            state = (state ^ state >> 29 ^ word(atom.first)) * 0x94D049BB133111EB;
            state = (state ^ state >> 31 ^ word(atom.second)) * 0x9E3779B97F4A7C15;
        }
        return state;
    }

    void begin(int64_t number, const Atom &atom) {
        candidate = number, query = atom, depth = 0, outcome = OPEN, is_limited = false, log_probability = 0;
        atoms.clear(), hashes.clear(), starts.assign(1, 0);
    }

    void visit(const Goal &goal) {
        hashes.push_back(hash_of(goal));
        atoms.insert(atoms.end(), goal.atoms, goal.atoms + goal.size);
        starts.push_back(atoms.size());
    }
};

// A step that has not been taken yet.
struct Step {
    uint8_t kind = GOAL;  // TRUE or FALSE where it stands alone
    std::vector<Resolvent> resolvents;
    std::vector<Atom> atoms;
    int64_t num_survivors = 0, dropped_atoms = 0, dropped_resolvents = 0, choice = 0;
    Resolvent first_true{};
    bool has_true = false;

    void clear() {
        resolvents.clear(), atoms.clear();
        kind = GOAL, num_survivors = dropped_atoms = dropped_resolvents = choice = 0, has_true = false;
    }

    Goal goal_of(const Resolvent &resolvent) const { return {atoms.data() + resolvent.first_atom, resolvent.num_atoms}; }
};

// The most general unifier of two atoms: x1 -> t1, then x2 -> t2.
struct Unifier {
    int32_t x1, t1, x2, t2;
    static constexpr int32_t UNBOUND = std::numeric_limits<int32_t>::min();

    static bool bind(int32_t left, int32_t right, int32_t &variable, int32_t &value) {
        variable = UNBOUND, value = UNBOUND;
        if (left == right) return true;
        if (left >= 0 && right >= 0) return false;
        variable = left < 0 ? left : right, value = left < 0 ? right : left;
        return true;
    }

    bool unify(int32_t head_first, int32_t head_second, const Atom &selected) {
        x1 = x2 = t1 = t2 = UNBOUND;
        if (!bind(head_first, selected.first, x1, t1)) return false;
        const int32_t left = head_second == x1 ? t1 : head_second;
        const int32_t right = selected.second == x1 ? t1 : selected.second;
        return bind(left, right, x2, t2);
    }

    int32_t apply(int32_t term) const {
        if (term >= 0) return term;
        if (term == x1) term = t1;
        return term == x2 ? t2 : term;
    }
};

inline int32_t standardize_apart(int32_t term, int32_t offset) { return term < 0 ? term - offset : term; }

inline int32_t count_variables(const Goal &goal) {  // of a canonical goal
    int32_t lowest = 0;
    for (size_t i = 0; i < goal.size; i++) lowest = std::min({lowest, goal.atoms[i].first, goal.atoms[i].second});
    return -lowest;
}

inline const Atom &select(const Goal &goal) { return goal.atoms[0]; }

inline void resolve(const Goal &body, int32_t offset, const Goal &goal, const Unifier &unifier, std::vector<Atom> &out) {
    out.clear();
    for (size_t i = 0; i < body.size; i++) {
        const Atom &atom = body.atoms[i];
        const int32_t first = standardize_apart(atom.first, offset), second = standardize_apart(atom.second, offset);
        out.push_back({atom.predicate, unifier.apply(first), unifier.apply(second)});
    }
    for (size_t i = 1; i < goal.size; i++) {
        const Atom &atom = goal.atoms[i];
        out.push_back({atom.predicate, unifier.apply(atom.first), unifier.apply(atom.second)});
    }
}

inline bool is_deleted(const Program &program, bool excludes, const Atom &query, const Atom &atom) {
    return is_ground(atom) && !(excludes && atom == query) && program.find_fact(atom) >= 0;
}

inline void prune(const Program &program, bool excludes, const Atom &query, std::vector<Atom> &atoms) {
    const auto is_gone = [&](const Atom &atom) { return is_deleted(program, excludes, query, atom); };
    atoms.erase(std::remove_if(atoms.begin(), atoms.end(), is_gone), atoms.end());
}

// Return the number of variables. numbers: memory for the new number of each old one
inline int32_t rename(std::vector<Atom> &atoms, std::vector<int32_t> &numbers) {
    int32_t num = 0;
    const auto renumber = [&](int32_t term) {
        if (term >= 0) return term;
        int32_t &number = numbers[-1 - static_cast<int64_t>(term)];
        if (number < 0) number = num++;
        return -1 - number;
    };
    for (Atom &atom : atoms) {
        atom.first = renumber(atom.first);
        atom.second = renumber(atom.second);
    }
    return num;
}

inline bool revisit(const Derivation &derivation, const Goal &goal) {
    const uint64_t hash = Derivation::hash_of(goal);
    for (size_t i = 0; i < derivation.hashes.size(); i++) {
        if (derivation.hashes[i] != hash) continue;
        const size_t first = derivation.starts[i];
        if (Goal{derivation.atoms.data() + first, derivation.starts[i + 1] - first} == goal) return true;
    }
    return false;
}

// Keep a resolvent, or count it as dropped.
inline void limit(const Limits &limits, const Resolvent &resolvent, size_t num_atoms, const std::vector<Atom> &atoms, Step &step) {
    if (static_cast<int64_t>(num_atoms) > limits.max_atoms) {
        step.dropped_atoms++;
    } else if (static_cast<int64_t>(step.resolvents.size()) >= limits.max_resolvents) {
        step.dropped_resolvents++;
    } else {
        step.resolvents.push_back(resolvent);
        step.resolvents.back().first_atom = step.atoms.size();
        step.atoms.insert(step.atoms.end(), atoms.begin(), atoms.end());
    }
}

// TRUE or FALSE alone, where there is a proof or nothing is left. TRUE makes what `limit` dropped irrelevant.
inline void close(Step &step) {
    if (!step.has_true && !step.resolvents.empty()) return;
    step.kind = step.has_true ? TRUE : FALSE;
    step.atoms.clear();
    step.resolvents.assign(1, step.has_true ? step.first_true : Resolvent{FALSE, NONE, 0, 0, 0, 0, 0.0});
    if (step.has_true) step.dropped_atoms = step.dropped_resolvents = 0;
}

// The atoms of resolvents, as `rename` left them, and where each resolvent ends.
struct Formed {
    std::vector<Atom> atoms;
    std::vector<size_t> ends;

    void add(const std::vector<Atom> &resolvent) {
        atoms.insert(atoms.end(), resolvent.begin(), resolvent.end());
        ends.push_back(atoms.size());
    }
};

// Applies the stages from `match_rules` to `limit` to the clauses of a goal, in order.
// counts: whether a step tells how many resolvents were dropped; else only whether any was
class Expansion {
  public:
    Expansion(const Program &program, const Limits &limits, bool counts) : program_(program), limits_(limits), counts_(counts) {}

    // probe: takes every clause that matches; without it, the clauses after a proof are not tried.
    // formed: takes the resolvents that matter to the step, or would with an entity in place of OTHER
    void expand(const Derivation &derivation, Step &step, Probe *probe = nullptr, Formed *formed = nullptr) {
        step.clear();
        formed_ = formed;
        const Goal goal = derivation.goal();
        // A position of another engine may have a goal without atoms.
        if (goal.size > 0 && program_.has_clauses(select(goal))) {
            const Atom selected = select(goal);
            num_variables_ = count_variables(goal);
            match_rules(derivation, goal, selected, step, probe);
            if (!step.has_true || probe) match_facts(derivation, goal, selected, step, probe);
        }
        close(step);
    }

  private:
    const Program &program_;
    const Limits &limits_;
    const bool counts_;
    int32_t num_variables_ = 0;
    std::vector<Atom> atoms_;
    Formed *formed_ = nullptr;
    std::vector<int32_t> numbers_;

    void match_rules(const Derivation &derivation, const Goal &goal, const Atom &selected, Step &step, Probe *probe) {
        const int64_t *first = program_.rule_first + selected.predicate;
        for (int64_t i = first[0]; i < first[1]; i++) {
            const int32_t rule = program_.rules_by_head[i];
            const int64_t start = program_.rule_start[rule];
            const Atom &head = program_.rule_atoms[start];
            const Goal body{&head + 1, static_cast<size_t>(program_.rule_start[rule + 1] - start - 1)};
            Unifier unifier;
            const int32_t head_first = standardize_apart(head.first, num_variables_);
            const int32_t head_second = standardize_apart(head.second, num_variables_);
            if (!unifier.unify(head_first, head_second, selected)) continue;
            form(derivation, goal, RULE, rule, body, program_.rule_variables[rule], unifier, step, probe);
            if (step.has_true && !probe) return;
        }
    }

    void match_facts(const Derivation &derivation, const Goal &goal, const Atom &selected, Step &step, Probe *probe) {
        const bool has_first = selected.first >= 0, has_second = selected.second >= 0;
        // Returns whether other facts are to be tried.
        const auto match = [&](int64_t index, const Atom &fact) {
            Unifier unifier;
            if (!unifier.unify(fact.first, fact.second, selected)) return true;
            if (limits_.exclude_query && fact == derivation.query) return true;
            form(derivation, goal, FACT, static_cast<int32_t>(index), {nullptr, 0}, 0, unifier, step, probe);
            return !step.has_true || probe;
        };
        if (has_first && has_second) {
            const int64_t index = program_.find_fact(selected);
            if (index >= 0) match(index, selected);
        } else if (has_first || has_second) {
            for (const auto &[predicate, other, index] : program_.find_facts(selected))
                if (!match(index, {predicate, has_first ? selected.first : other, has_first ? other : selected.second})) return;
        } else {
            const int64_t *first = program_.fact_first + selected.predicate;
            for (int64_t i = first[0]; i < first[1]; i++)
                if (!match(i, program_.facts[i])) return;
        }
    }

    // The stages from `resolve` to `limit`, for a clause that matches.
    void form(const Derivation &derivation, const Goal &goal, OriginKind origin_kind, int32_t origin, const Goal &body,
              int32_t num_variables, const Unifier &unifier, Step &step, Probe *probe) {
        const bool is_full = static_cast<int64_t>(step.resolvents.size()) >= limits_.max_resolvents;
        if (!counts_ && is_full && step.dropped_atoms + step.dropped_resolvents > 0) {
            if (is_proof(derivation, goal, body, unifier)) keep_proof(step, {TRUE, origin_kind, 0, origin, 0, 0, 0.0});
            return;
        }
        resolve(body, num_variables_, goal, unifier, atoms_);
        if (probe) show(*probe, {origin_kind, 1, origin, static_cast<int32_t>(atoms_.size()), 0});
        prune(program_, limits_.exclude_query, derivation.query, atoms_);
        if (probe) show(*probe);
        numbers_.assign(num_variables_ + num_variables, -1);
        const int32_t num = rename(atoms_, numbers_);
        if (probe) probe->atoms.insert(probe->atoms.end(), atoms_.begin(), atoms_.end());
        if (formed_) formed_->add(atoms_);
        Resolvent resolvent{GOAL, origin_kind, static_cast<uint16_t>(atoms_.size()), origin, num, 0, 0.0};
        if (atoms_.empty()) {
            resolvent.kind = TRUE;
            keep_proof(step, resolvent);
        } else if (revisit(derivation, {atoms_.data(), atoms_.size()})) {
            if (probe) probe->tried.back().is_left = 0;
        } else {
            step.num_survivors++;
            limit(limits_, resolvent, atoms_.size(), atoms_, step);
        }
    }

    static void keep_proof(Step &step, const Resolvent &resolvent) {
        if (!step.has_true) step.first_true = resolvent;
        step.has_true = true;
    }

    // Return whether facts delete every atom of a resolvent. Most have an early atom that none deletes.
    bool is_proof(const Derivation &derivation, const Goal &goal, const Goal &body, const Unifier &unifier) {
        atoms_.clear();
        const auto is_left = [&](const Atom &atom) {
            if (is_deleted(program_, limits_.exclude_query, derivation.query, atom)) return false;
            if (!formed_ || !is_open(atom) || !is_ground(atom)) return true;
            // A fact may delete it with an entity in place of OTHER.
            atoms_.push_back(atom);
            return false;
        };
        for (size_t i = 0; i < body.size; i++) {
            const Atom &atom = body.atoms[i];
            const int32_t first = standardize_apart(atom.first, num_variables_);
            const int32_t second = standardize_apart(atom.second, num_variables_);
            if (is_left({atom.predicate, unifier.apply(first), unifier.apply(second)})) return false;
        }
        for (size_t i = 1; i < goal.size; i++) {
            const Atom &atom = goal.atoms[i];
            if (is_left({atom.predicate, unifier.apply(atom.first), unifier.apply(atom.second)})) return false;
        }
        if (!atoms_.empty()) formed_->add(atoms_);
        return atoms_.empty();
    }

    void show(Probe &probe, const Tried &tried) {
        probe.tried.push_back(tried);
        probe.atoms.insert(probe.atoms.end(), atoms_.begin(), atoms_.end());
    }

    void show(Probe &probe) {
        probe.tried.back().num_pruned = static_cast<int32_t>(atoms_.size());
        probe.atoms.insert(probe.atoms.end(), atoms_.begin(), atoms_.end());
    }
};

// Of a resolvent of n atoms and v variables; exact in any floating-point type.
inline double score_shortest(const Resolvent &resolvent) { return -(resolvent.num_atoms + resolvent.num_variables / 64.0); }

inline int64_t choose(const Step &step) {
    const auto is_less = [](const Resolvent &a, const Resolvent &b) { return a.score < b.score; };
    return std::max_element(step.resolvents.begin(), step.resolvents.end(), is_less) - step.resolvents.begin();
}

// The log-softmax of the scores at the choice, in nats.
inline double log_softmax(const Step &step) {
    if (step.kind != GOAL) return 0;
    const double highest = step.resolvents[step.choice].score;
    double sum = 0;
    for (const Resolvent &resolvent : step.resolvents) sum += std::exp(resolvent.score - highest);
    return -std::log(sum);
}

inline void advance(Derivation &derivation, const Step &step) {
    derivation.depth++;
    derivation.is_limited |= step.dropped_atoms > 0 || step.dropped_resolvents > 0;
    derivation.log_probability += log_softmax(step);
    if (step.kind == GOAL) derivation.visit(step.goal_of(step.resolvents[step.choice]));
}

inline Outcome finish(const Limits &limits, const Step &step, int64_t depth) {
    if (step.kind == TRUE) return PROVED;
    if (step.kind == FALSE) return FAILED;
    return depth >= limits.max_depth ? DEPTH_LIMIT : OPEN;
}

// The digest of a goal, and of a step (docs/traces.md).
inline uint64_t digest_goal(uint8_t kind, const Goal &goal) {
    uint64_t sum = 0;
    for (size_t i = 0; i < goal.size; i++) {
        const Atom &atom = goal.atoms[i];
        sum += fold(fold(fold(fold(0, i), word(atom.predicate)), word(atom.first)), word(atom.second));
    }
    return fold(mix(mix(goal.size) ^ kind), sum);
}

inline uint64_t digest_step(const Goal &goal, const Step &step, int64_t depth, Outcome outcome) {
    uint64_t sum = 0;
    for (size_t i = 0; i < step.resolvents.size(); i++) {
        const Resolvent &resolvent = step.resolvents[i];
        sum += mix(mix(digest_goal(resolvent.kind, step.goal_of(resolvent))) ^ i);
    }
    uint64_t state = fold(digest_goal(GOAL, goal), sum);
    for (const int64_t value : {static_cast<int64_t>(step.resolvents.size()), step.dropped_atoms, step.dropped_resolvents,
                                step.choice, static_cast<int64_t>(outcome), depth})
        state = mix(state ^ mix(word(value)));
    return state;
}
