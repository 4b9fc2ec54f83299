// Derivations of candidates that differ in one argument, r(a, ?) or r(?, b), taken together while no clause tells them apart.
//
// Such candidates, the *members*, share one derivation: that of the constant OTHER, which occurs in no clause, in place of
// their entities. A step of OTHER is the step of a member too, unless the member's entity
//   - makes a resolvent equal to a visited goal,
//   - has a fact that matches the selected atom, or that deletes an atom of a resolvent, with the entity in place of OTHER,
//   - or stands in the head of a rule for the selected atom.
// These members take the step by themselves. Members continue together if their next goals are equal, with OTHER in place of
// their entities. So the entity of a member is never a constant of the shared goals, and a query that is a fact, whose
// exclusion the others lack, is proved alone. This requires scores that do not depend on constants: those of `shortest`.

#pragma once

#include <unordered_map>

#include "stages.h"

constexpr int8_t STOPPED = 4;  // ends a derivation below its floor; no step has it

struct Ending {
    int8_t outcome = OPEN;
    uint8_t is_limited = 0;
    double log_probability = 0;
};

// Score and take a step by `shortest`. Return the outcome, or STOPPED.
inline int8_t take_shortest(const Limits &limits, Derivation &derivation, Step &step, const double *floor) {
    if (step.kind == GOAL)
        for (Resolvent &resolvent : step.resolvents) resolvent.score = score_shortest(resolvent);
    step.choice = choose(step);
    derivation.outcome = finish(limits, step, derivation.depth + 1);
    advance(derivation, step);
    const bool is_below = floor && derivation.log_probability < floor[derivation.candidate];
    return derivation.outcome == OPEN && is_below ? STOPPED : static_cast<int8_t>(derivation.outcome);
}

// Consecutive candidates with the same predicate and one equal argument.
struct Unit {
    int64_t begin, end;
    int32_t Atom::*differing;
};

// Cut ground queries into units of at most `most` candidates.
inline std::vector<Unit> cut_units(const Atom *queries, int64_t num, int64_t most) {
    std::vector<Unit> units;
    for (int64_t begin = 0; begin < num; begin = units.back().end) {
        const auto find_end = [&](int32_t Atom::*kept) {
            int64_t end = begin + 1;
            const auto is_alike = [&](const Atom &other) {
                return other.predicate == queries[begin].predicate && other.*kept == queries[begin].*kept;
            };
            while (end < std::min(num, begin + most) && is_alike(queries[end])) end++;
            return end;
        };
        const int64_t by_first = find_end(&Atom::first), by_second = find_end(&Atom::second);
        if (by_first >= by_second) units.push_back({begin, by_first, &Atom::second});
        else units.push_back({begin, by_second, &Atom::first});
    }
    return units;
}

class Sharing {
  public:
    Sharing(const Program &program, const Limits &limits, const Atom *queries, const double *floor, std::vector<Ending> &endings)
        : program_(program), limits_(limits), queries_(queries), floor_(floor), endings_(endings), expansion_(program, limits, false) {}

    void prove(const Unit &unit) {
        Atom open = queries_[unit.begin];
        open.*unit.differing = OTHER;
        const int32_t kept = open.first == OTHER ? open.second : open.first;
        path_.begin(unit.begin, open);
        Node shared{0, {open}, {}};
        int32_t highest = kept;
        for (int64_t i = unit.begin; i < unit.end; i++) {
            shared.members.push_back({i, queries_[i].*unit.differing, false, 0});
            highest = std::max(highest, shared.members.back().entity);
        }
        if (marks_.size() <= static_cast<size_t>(highest)) marks_.resize(static_cast<size_t>(highest) + 1, 0);
        mark_++;
        mark(kept);
        if (limits_.exclude_query) mark_facts(open, shared.members);
        take_marked(shared.members);
        for (const Member &member : apart_) nodes_.push_back({0, {open}, {member}});
        if (!shared.members.empty()) nodes_.push_back(std::move(shared));
        // The last node comes first, so that the path to it is a part of the current one.
        while (!nodes_.empty()) {
            Node node = std::move(nodes_.back());
            nodes_.pop_back();
            path_.hashes.resize(node.depth), path_.starts.resize(node.depth + 1), path_.atoms.resize(path_.starts.back());
            path_.visit({node.goal.data(), node.goal.size()});
            path_.depth = static_cast<int64_t>(node.depth);
            if (node.members.size() == 1) prove_alone(node.members[0]);
            else advance_together(node);
        }
    }

  private:
    static constexpr size_t FACTS_PER_LOOKUP = 16;  // facts that are read one after the other in the time of a search for one

    struct Member {
        int64_t candidate;
        int32_t entity;
        bool is_limited;
        double log_probability;
    };

    // Members after `depth` steps, whose next goal is the same.
    struct Node {
        size_t depth;
        std::vector<Atom> goal;
        std::vector<Member> members;
    };

    const Program &program_;
    const Limits &limits_;
    const Atom *queries_;
    const double *floor_;
    std::vector<Ending> &endings_;
    Expansion expansion_;
    Derivation path_, own_;  // of OTHER, and of one member
    Step step_;
    Formed formed_;
    std::vector<Atom> lifted_;
    std::vector<Node> nodes_;
    std::vector<Member> apart_;
    std::unordered_map<uint64_t, size_t> next_;  // where the next goals of this step are among the nodes, by their hashes
    std::vector<uint64_t> marks_;                // of each entity, the last step in which it was told apart
    uint64_t mark_ = 0;

    static Atom put(Atom atom, int32_t old, int32_t entity) {
        if (atom.first == old) atom.first = entity;
        if (atom.second == old) atom.second = entity;
        return atom;
    }

    // Make the path that of a member.
    void descend(const Member &member) {
        own_.begin(member.candidate, queries_[member.candidate]);
        own_.depth = path_.depth, own_.is_limited = member.is_limited, own_.log_probability = member.log_probability;
        own_.starts = path_.starts, own_.hashes = path_.hashes, own_.atoms = path_.atoms;
        for (size_t i = 0; i < own_.hashes.size(); i++) {
            const size_t first = own_.starts[i], end = own_.starts[i + 1];
            bool is_changed = false;
            for (size_t j = first; j < end; j++) {
                is_changed |= is_open(own_.atoms[j]);
                own_.atoms[j] = put(own_.atoms[j], OTHER, member.entity);
            }
            if (is_changed) own_.hashes[i] = Derivation::hash_of({own_.atoms.data() + first, end - first});
        }
    }

    int8_t step_alone() {
        expansion_.expand(own_, step_);
        const int8_t ended = take_shortest(limits_, own_, step_, floor_);
        if (ended != OPEN) endings_[own_.candidate] = {ended, own_.is_limited, own_.log_probability};
        return ended;
    }

    void prove_alone(const Member &member) {
        descend(member);
        while (step_alone() == OPEN) {}
    }

    void advance_together(Node &node) {
        const size_t depth = node.depth + 1;
        std::vector<Member> &members = node.members;
        formed_.atoms.clear(), formed_.ends.clear();
        expansion_.expand(path_, step_, nullptr, &formed_);
        mark_++;
        mark_clauses(members);
        take_marked(members);
        next_.clear();
        if (!members.empty()) {
            path_.is_limited = false, path_.log_probability = 0;
            const int8_t ended = take_shortest(limits_, path_, step_, nullptr);
            mark_++;
            if (ended == OPEN) mark_constants(path_.goal());
            size_t num = 0;
            for (Member member : members) {
                member.is_limited |= path_.is_limited, member.log_probability += path_.log_probability;
                const bool is_below = floor_ && member.log_probability < floor_[member.candidate];
                if (ended != OPEN || is_below)
                    endings_[member.candidate] = {ended == OPEN ? STOPPED : ended, member.is_limited, member.log_probability};
                else if (marks_[member.entity] == mark_)
                    send(depth, path_.goal(), member);
                else
                    members[num++] = member;
            }
            members.resize(num);
            if (num) find_node(depth, path_.goal()).members = std::move(members);
            path_.depth--;
            if (step_.kind == GOAL)
                path_.hashes.pop_back(), path_.starts.pop_back(), path_.atoms.resize(path_.starts.back());
        }
        for (const Member &member : apart_) {
            descend(member);
            if (step_alone() == OPEN)
                send(depth, own_.goal(), {member.candidate, member.entity, own_.is_limited, own_.log_probability});
        }
    }

    // Send a member to the node of its next goal.
    void send(size_t depth, const Goal &goal, const Member &member) {
        lifted_.assign(goal.atoms, goal.atoms + goal.size);
        for (Atom &atom : lifted_) atom = put(atom, member.entity, OTHER);
        find_node(depth, {lifted_.data(), lifted_.size()}).members.push_back(member);
    }

    // The node of a next goal; a new one, unless this step has already come to the goal.
    Node &find_node(size_t depth, const Goal &goal) {
        const auto [at, is_new] = next_.try_emplace(Derivation::hash_of(goal), nodes_.size());
        if (!is_new && Goal{nodes_[at->second].goal.data(), nodes_[at->second].goal.size()} == goal) return nodes_[at->second];
        nodes_.push_back({depth, {goal.atoms, goal.atoms + goal.size}, {}});
        return nodes_.back();
    }

    void mark(int32_t constant) {
        if (constant >= 0 && static_cast<size_t>(constant) < marks_.size()) marks_[constant] = mark_;
    }

    // Move the members whose entities are marked to `apart_`.
    void take_marked(std::vector<Member> &members) {
        apart_.clear();
        size_t num = 0;
        for (const Member &member : members) {
            if (marks_[member.entity] == mark_) apart_.push_back(member);
            else members[num++] = member;
        }
        members.resize(num);
    }

    void mark_constants(const Goal &goal) {
        for (size_t i = 0; i < goal.size; i++) mark(goal.atoms[i].first), mark(goal.atoms[i].second);
    }

    // Mark the entities for which the step may be another one.
    void mark_clauses(const std::vector<Member> &members) {
        const Atom selected = select(path_.goal());
        if (is_open(selected)) {
            mark_facts(selected, members);
            for (int64_t i = program_.rule_first[selected.predicate]; i < program_.rule_first[selected.predicate + 1]; i++) {
                const Atom &head = program_.rule_atoms[program_.rule_start[program_.rules_by_head[i]]];
                mark(head.first), mark(head.second);
            }
        }
        Atom last = selected;
        size_t first = 0;
        for (const size_t end : formed_.ends) {
            mark_revisits({&formed_.atoms[first], end - first});
            for (; first < end; first++) {
                const Atom &atom = formed_.atoms[first];
                if (!is_open(atom) || !is_ground(atom) || atom == last) continue;
                mark_facts(atom, members);
                last = atom;
            }
        }
    }

    // Mark the entity with which a resolvent equals a visited goal, if it replaces OTHER.
    void mark_revisits(const Goal &goal) {
        for (size_t i = 0; i < path_.hashes.size(); i++) {
            const Goal visited{path_.atoms.data() + path_.starts[i], path_.starts[i + 1] - path_.starts[i]};
            int32_t entity = OTHER;
            const auto is_alike = [&](int32_t term, int32_t other) {
                if (term == other) return true;
                if (term != OTHER && other != OTHER) return false;
                const int32_t constant = term == OTHER ? other : term;
                const bool is_first = entity == OTHER;
                if (is_first) entity = constant;
                return constant >= 0 && entity == constant;
            };
            bool is_equal = visited.size == goal.size;
            for (size_t j = 0; is_equal && j < goal.size; j++) {
                const Atom &atom = goal.atoms[j], &other = visited.atoms[j];
                is_equal = atom.predicate == other.predicate && is_alike(atom.first, other.first) && is_alike(atom.second, other.second);
            }
            if (is_equal && entity != OTHER) mark(entity);
        }
    }

    // Mark the entities with which an atom matches a fact when they replace OTHER.
    void mark_facts(const Atom &atom, const std::vector<Member> &members) {
        if (!program_.has_clauses(atom)) return;
        const int64_t *first = program_.fact_first + atom.predicate;
        const bool is_by_constant = (atom.first >= 0 && atom.first != OTHER) || (atom.second >= 0 && atom.second != OTHER);
        const auto range = is_by_constant ? program_.find_facts(put(atom, OTHER, -1)) : ArgumentIndex::Range{nullptr, nullptr};
        const size_t num = is_by_constant ? range.size() : static_cast<size_t>(first[1] - first[0]);
        if (num > FACTS_PER_LOOKUP * members.size()) {
            for (const Member &member : members) {
                const Atom own = put(atom, OTHER, member.entity);
                if (is_ground(own) ? program_.find_fact(own) >= 0 : program_.find_facts(own).size() > 0) mark(member.entity);
            }
        } else if (is_by_constant) {
            for (const auto &entry : range) mark(entry.other);
        } else {
            for (int64_t i = first[0]; i < first[1]; i++) {
                const Atom &fact = program_.facts[i];
                if (atom.first == OTHER && (atom.second != OTHER || fact.first == fact.second)) mark(fact.first);
                if (atom.second == OTHER && atom.first != OTHER) mark(fact.second);
            }
        }
    }
};
